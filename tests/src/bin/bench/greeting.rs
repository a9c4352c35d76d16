//! The hellos that clients send.

use ::tests::hello::hello;
use load::content::{Template, host_name};

/// 517 bytes, as most clients without post-quantum key shares send.
pub(crate) fn usual() -> Template {
    template(hello().name(host_name(0)).length(517).bytes())
}

/// 1,800 bytes: two segments on the wire, with the name in the second.
pub(crate) fn long() -> Template {
    template(hello().name(host_name(0)).name_last().length(1800).bytes())
}

fn template(bytes: Vec<u8>) -> Template {
    Template::new(bytes).expect("the name was just put in")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_long_hello_is_in_its_second_segment() {
        for (mut template, length, late) in [(usual(), 517, false), (long(), 1800, true)] {
            let name = host_name(999_999);
            let bytes = template.of(999_999);
            let at = bytes.windows(name.len()).position(|window| window == name.as_bytes()).unwrap();
            assert_eq!(bytes.len(), length);
            // 1,448 bytes fit into 1,500 bytes with headers and timestamps.
            assert_eq!(at > 1448, late);
        }
    }
}
