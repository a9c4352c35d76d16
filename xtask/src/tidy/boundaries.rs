//! Which folder may use what. A dependency that the architecture does not show is forbidden by a rule here.

use super::{File, Tree, in_word, words};

/// Words that only some files may use.
struct Boundary {
    /// Words or paths, as in code.
    words: &'static [&'static str],
    /// Where the rule applies.
    within: &'static [&'static str],
    /// The files that may use the words.
    except: &'static [&'static str],
    why: &'static str,
}

const BOUNDARIES: &[Boundary] = &[
    Boundary {
        words: &["aya::", "aya_obj::", "use aya;"],
        within: &[""],
        // The map types implement aya's `Pod`, behind feature `user`.
        except: &[
            "userspace/src/dataplane/",
            "tests/src/pinned.rs",
            "tests/src/program.rs",
            "tests/src/front.rs",
            "tests/src/map_facts.rs",
            "tests/src/busy.rs",
            "common/src/maps/mod.rs",
            "xtask/",
        ],
        why: "only the data plane's folder speaks to the kernel",
    },
    Boundary {
        words: &["dataplane::"],
        within: &["userspace/src/"],
        except: &[
            "userspace/src/dataplane/",
            "userspace/src/outputs/",
            // These read the maps even when no daemon runs.
            "userspace/src/cli/",
            "userspace/src/metrics/",
        ],
        why: "orders go to outputs, and what they hold comes back from them",
    },
    Boundary {
        words: &["aya_ebpf"],
        within: &[""],
        except: &["xdp-ebpf/", "xtask/"],
        why: "only the eBPF programs are built for the kernel",
    },
    Boundary {
        words: &["tokio", "Instant::now", "SystemTime"],
        within: &[
            "userspace/src/model",
            "userspace/src/origins",
            "userspace/src/compile",
            "userspace/src/ipam",
            "userspace/src/plan",
            "userspace/src/config",
            "userspace/src/status",
            "common/",
        ],
        // One follows an object through the store.
        except: &["userspace/src/origins/tests/"],
        why: "what is pure gets its time as an argument and waits for nothing",
    },
    Boundary {
        words: &["kube::", "k8s_openapi::"],
        within: &["userspace/src/"],
        except: &[
            "userspace/src/sources/kubernetes/",
            "userspace/src/controller/",
            "userspace/src/node/",
            "userspace/src/cli/crds.rs",
        ],
        why: "only who watches the API server or writes to it knows its client",
    },
    Boundary {
        words: &["std::fs", "std::net::TcpStream", "std::net::UdpSocket"],
        within: &[
            "userspace/src/model",
            "userspace/src/origins",
            "userspace/src/compile",
            "userspace/src/ipam",
            "userspace/src/plan",
            "common/",
        ],
        except: &[],
        why: "what is pure does no I/O",
    },
    Boundary {
        words: &["unsafe"],
        within: &[""],
        except: &[
            // The panic handler, which calls a function that does not exist.
            "xdp-ebpf/src/main.rs",
            "xdp-ebpf/src/packet.rs",
            "xdp-ebpf/src/atomic.rs",
            "xdp-ebpf/src/maps/",
            "xdp-ebpf/src/trie_key.rs",
            "xdp-ebpf/src/kernel/",
            // Functions that the verifier checks separately; they must check their pointers for null.
            "xdp-ebpf/src/verified.rs",
            "common/src/maps/mod.rs",
            "userspace/src/dataplane/",
            // One ioctl.
            "userspace/src/net/ethtool.rs",
            // A packet socket, and memberships in groups.
            "userspace/src/net/frames.rs",
            "userspace/src/net/groups.rs",
            "tests/src/",
            "xtask/",
        ],
        why: "raw memory and system calls stay in these few files",
    },
    Boundary {
        words: &["#[btf_map", "#[map"],
        within: &["xdp-ebpf/"],
        except: &["xdp-ebpf/src/maps/"],
        why: "all maps are in one folder",
    },
    Boundary {
        words: &["Scratch"],
        within: &["xdp-ebpf/src/"],
        except: &[
            "xdp-ebpf/src/main.rs",
            "xdp-ebpf/src/maps/",
            "xdp-ebpf/src/scratch.rs",
            "xdp-ebpf/src/path/",
        ],
        why: "only the order of stages knows the whole working memory; others take parts of it",
    },
    Boundary {
        words: &["__sk_buff"],
        within: &["xdp-ebpf/src/"],
        except: &["xdp-ebpf/src/kernel/"],
        why: "the packet in hand is a type of kernel/",
    },
    Boundary {
        words: &["source_port", "maps::reply", "claim_reply", "take_reply", "remove_reply"],
        within: &["xdp-ebpf/src/"],
        except: &["xdp-ebpf/src/delivery/", "xdp-ebpf/src/maps/"],
        why: "only a delivery knows source addresses, source ports and whose replies are",
    },
    Boundary {
        words: &[
            "crate::path",
            "super::flow",
            "super::pending",
            "super::half_open",
            "super::new",
            "super::stray",
            "super::icmp",
        ],
        within: &["xdp-ebpf/src/path/"],
        except: &["xdp-ebpf/src/path/mod.rs"],
        why: "a path never calls a path: it gives the class that the packet has now",
    },
    Boundary {
        words: &["anyhow"],
        within: &["userspace/src/", "common/", "xdp-ebpf/"],
        except: &["userspace/src/cli/", "userspace/src/main.rs"],
        why: "library folders say what can go wrong, as types",
    },
];

/// Returns the words in files that may not use them.
pub(super) fn check(tree: &Tree) -> Vec<String> {
    let mut problems = Vec::new();
    for boundary in BOUNDARIES {
        let concerned = |file: &&File| {
            let starts = |list: &[&str]| list.iter().any(|prefix| file.path.starts_with(prefix));
            starts(boundary.within) && !starts(boundary.except)
        };
        for file in tree.sources().filter(concerned) {
            for (number, line) in file.code() {
                for word in boundary.words.iter().filter(|word| stands(line, word)) {
                    problems.push(format!(
                        "{}:{number}: `{word}` may not be used here: {}",
                        file.path, boundary.why
                    ));
                }
            }
        }
    }
    problems
}

/// Whether `word` is used in `line`; `unsafe(...)` is an attribute, not unsafe code.
fn stands(line: &str, word: &str) -> bool {
    match word.ends_with(in_word) {
        true => words(line, word).any(|at| word != "unsafe" || !line[at + word.len()..].starts_with('(')),
        false => line.match_indices(word).any(|(at, _)| !line[..at].ends_with(in_word)),
    }
}

/// Splits a source into the part before its `mod tests`, and the rest.
pub(super) fn split_tests(text: &str) -> (&str, &str) {
    text.split_at(text.find("#[cfg(test)]\nmod ").unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aya_outside_the_data_plane_is_found() {
        let tree = Tree::of(&[
            ("userspace/src/plan/mod.rs", "// aya::x is fine here\nuse aya::maps::MapData;\n"),
            ("userspace/src/dataplane/load.rs", "use aya::Ebpf;\n"),
        ]);
        let problems = check(&tree);
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("userspace/src/plan/mod.rs:2: `aya::`"), "{problems:?}");
    }

    #[test]
    fn the_programs_keep_their_rooms() {
        let tree = Tree::of(&[
            ("xdp-ebpf/src/stage/syn.rs", "fn x(s: &mut Scratch) {}\n"),
            ("xdp-ebpf/src/stage/pick.rs", "fn x(skb: *mut __sk_buff) {}\n"),
            ("xdp-ebpf/src/connection/end.rs", "maps::remove_reply(&nat);\n"),
            ("xdp-ebpf/src/path/flow.rs", "super::pending::client(skb, s)\n"),
            ("xdp-ebpf/src/path/mod.rs", "flow::client(skb, s: &mut Scratch)\n"),
            ("xdp-ebpf/src/delivery/nat.rs", "dial.nat.source_port = port;\n"),
        ]);
        let problems = check(&tree);
        assert_eq!(problems.len(), 4, "{problems:?}");
    }

    #[test]
    fn a_clock_in_a_pure_folder_and_unsafe_code_are_found() {
        let tree = Tree::of(&[
            ("common/src/decide/cookie.rs", "let now = Instant::now();\n"),
            ("xdp-ebpf/src/stage/syn.rs", "unsafe { x() }\n"),
            ("xdp-ebpf/src/main.rs", "#[unsafe(link_section = \"license\")]\n"),
        ]);
        assert_eq!(check(&tree).len(), 2, "{:?}", check(&tree));
    }
}
