//! What was asked of the API server: its audit log, and its metrics.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::path::PathBuf;

use serde_json::{Value, json};
use tests::cluster::Kubectl;
use tests::temp::TempDir;

/// An agent gives up a request whose answer does not begin within 10 s. Its timer and the API server's are not the same one.
const GIVEN_UP_SECS: f64 = 9.9;

/// Verbs of writes.
pub(crate) const WRITES: [&str; 4] = ["create", "update", "patch", "delete"];

/// The audit log, read as it grows: a large fleet's has a million lines.
pub(crate) struct Audit {
    path: PathBuf,
    /// What comes before is counted.
    offset: u64,
    counts: Counts,
}

impl Audit {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, counts: Counts::default() }
    }

    /// Reads on. Returns what was asked from the beginning.
    pub(crate) fn read(&mut self) -> &Counts {
        let mut file = File::open(&self.path).unwrap();
        let length = file.metadata().unwrap().len();
        assert!(
            self.offset <= length,
            "the audit log was rotated: {length} bytes, {} were read",
            self.offset
        );
        file.seek(SeekFrom::Start(self.offset)).unwrap();
        let (mut file, mut line) = (BufReader::new(file), Vec::new());
        while file.read_until(b'\n', &mut line).unwrap() > 0 && line.ends_with(b"\n") {
            self.counts.take(&serde_json::from_slice(&line).unwrap());
            self.offset += line.len() as u64;
            line.clear();
        }
        &self.counts
    }
}

/// Requests of our accounts: of watches, that they began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// By account, verb and kind: `claims`, `tlsroutes/status`.
    requests: BTreeMap<(String, String, String), usize>,
    /// What each agent asked for, by kind and node. All have one account: their User-Agents name the nodes.
    agents: BTreeMap<(String, String), Asked>,
    /// Requests for which the account has no right.
    forbidden: Vec<String>,
}

/// What an agent asked for of a kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Lists of all objects that were answered.
    pub(crate) lists: usize,
    /// The same that were refused, or given up before the answer began.
    pub(crate) refused_lists: usize,
    /// Questions for the version that the API server is at.
    pub(crate) questions: usize,
    /// Watches that were answered, those that begin with all objects too.
    pub(crate) watches: usize,
    /// Requests that were refused or given up: each is worth another one.
    pub(crate) refused: usize,
}

impl Counts {
    fn take(&mut self, event: &Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            self.forbidden.push(event.to_string());
        }
        if event["verb"] == "watch" && event["stage"] != "ResponseStarted" {
            return;
        }
        let (account, object) = (account(event), &event["objectRef"]);
        let resource = text(&object["resource"]);
        let what = match object["subresource"].as_str() {
            Some(part) => format!("{resource}/{part}"),
            None => resource.clone(),
        };
        *self.requests.entry((account.to_owned(), text(&event["verb"]), what)).or_default() += 1;
        if account != "agent" {
            return;
        }
        let name = event["userAgent"].as_str().unwrap_or_default();
        let node = name.split_once(" agent (").and_then(|(_, rest)| rest.strip_suffix(')'));
        let node = node.unwrap_or_else(|| panic!("an agent that names no node: {name:?}"));
        let (is_list, is_refused) = (is_list(event), is_refused(event));
        let asked = self.agents.entry((resource, node.to_owned())).or_default();
        asked.lists += usize::from(is_list && !is_refused);
        asked.refused_lists += usize::from(is_list && is_refused);
        asked.questions += usize::from(asks_version(event));
        asked.watches += usize::from(event["verb"] == "watch" && !is_refused);
        asked.refused += usize::from(is_refused);
    }

    /// What was asked after `mark`, which was read before.
    pub(crate) fn since(&self, mark: &Self) -> Self {
        let mut requests = self.requests.clone();
        for (key, count) in &mark.requests {
            *requests.get_mut(key).unwrap() -= count;
        }
        requests.retain(|_, count| *count > 0);
        let mut agents = self.agents.clone();
        for (key, before) in &mark.agents {
            let asked = agents.get_mut(key).unwrap();
            asked.lists -= before.lists;
            asked.refused_lists -= before.refused_lists;
            asked.questions -= before.questions;
            asked.watches -= before.watches;
            asked.refused -= before.refused;
        }
        agents.retain(|_, asked| *asked != Asked::default());
        Self { requests, agents, forbidden: self.forbidden[mark.forbidden.len()..].to_vec() }
    }

    /// Requests of an account for a kind by one of these verbs.
    pub(crate) fn of(&self, account: &str, verbs: &[&str], what: &str) -> usize {
        let wanted = |(who, verb, kind): &(String, String, String)| {
            who == account && verbs.contains(&verb.as_str()) && kind == what
        };
        self.requests.iter().filter(|(key, _)| wanted(key)).map(|(_, count)| count).sum()
    }

    /// Writes of anything but Leases, by any account.
    pub(crate) fn writes(&self) -> usize {
        let is_write =
            |(_, verb, what): &(String, String, String)| WRITES.contains(&verb.as_str()) && what != "leases";
        self.requests.iter().filter(|(key, _)| is_write(key)).map(|(_, count)| count).sum()
    }

    /// What each agent asked for of a kind, by node.
    pub(crate) fn by_agent(&self, resource: &str) -> BTreeMap<&str, Asked> {
        let of_kind = self.agents.iter().filter(|((kind, _), _)| kind == resource);
        of_kind.map(|((_, node), asked)| (node.as_str(), *asked)).collect()
    }

    /// Lists of all objects of any kind that agents asked for.
    pub(crate) fn lists_of_agents(&self) -> usize {
        self.agents.values().map(|asked| asked.lists + asked.refused_lists).sum()
    }

    /// By account, verb and kind.
    pub(crate) fn requests(&self) -> &BTreeMap<(String, String, String), usize> {
        &self.requests
    }

    /// Requests for which the account has no right.
    pub(crate) fn forbidden(&self) -> &[String] {
        &self.forbidden
    }
}

/// `agent`, `controller`, or empty.
fn account(event: &Value) -> &str {
    let user = event["user"]["username"].as_str().unwrap_or_default();
    user.rsplit_once(":vestibule-").map_or("", |(_, account)| account)
}

/// Whether it asks for all objects: by a list, or by a watch that begins with them.
fn is_list(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    (event["verb"] == "list" && !asks_version(event)) || uri.contains("sendInitialEvents=true")
}

/// Whether it asks for the version that the API server is at: by a list of one object that does not go on.
fn asks_version(event: &Value) -> bool {
    let uri = event["requestURI"].as_str().unwrap_or_default();
    let mut parts = uri.split(['?', '&']);
    let goes_on = parts.clone().any(|part| part.starts_with("continue="));
    event["verb"] == "list" && !goes_on && parts.any(|part| part == "limit=1")
}

/// Whether it was refused, or answered after its sender had given up.
fn is_refused(event: &Value) -> bool {
    let [received, answered] =
        ["requestReceivedTimestamp", "stageTimestamp"].map(|name| event[name].as_str().and_then(day_secs));
    let took = answered.zip(received).map(|(answered, received)| (answered - received).rem_euclid(86_400.0));
    // A page of a list may take longer.
    let is_urgent = event["verb"] == "watch" || asks_version(event);
    event["responseStatus"]["code"].as_u64() >= Some(400)
        || is_urgent && took.is_some_and(|took| took >= GIVEN_UP_SECS)
}

/// The second of the day of `2026-11-30T07:34:41.123456Z`.
fn day_secs(time: &str) -> Option<f64> {
    let mut parts = time.split_once('T')?.1.strip_suffix('Z')?.split(':').map(str::parse::<f64>);
    let [hours, minutes, seconds] = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
    Some((hours * 60.0 + minutes) * 60.0 + seconds)
}

/// Returns how many events of Claims all watches were sent, and their bytes.
pub(crate) fn watch_events(kubectl: &Kubectl) -> (f64, f64) {
    let text = kubectl.run(&["get", "--raw", "/metrics"]).unwrap();
    let sum = |metric: &str| -> f64 {
        let lines = text.lines().filter(|line| line.starts_with(metric) && is_of_claims(line));
        lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    (sum("apiserver_watch_events_sizes_count{"), sum("apiserver_watch_events_sizes_sum{"))
}

fn is_of_claims(line: &str) -> bool {
    line.contains("kind=\"Claim\"") || line.contains("resource=\"claims\"")
}

/// Returns a request of an agent for Claims.
fn request(node: &str, verb: &str, query: &str, code: u32) -> Value {
    json!({"verb": verb, "requestURI": format!("/apis/vestibule.dev/v1alpha1/claims?{query}"),
        "stage": if verb == "watch" { "ResponseStarted" } else { "ResponseComplete" },
        "user": {"username": "system:serviceaccount:vestibule-system:vestibule-agent"},
        "userAgent": format!("vestibule/0.1.0 agent ({node})"),
        "objectRef": {"resource": "claims"}, "responseStatus": {"code": code}})
}

fn counted(requests: &[Value]) -> Counts {
    let mut counts = Counts::default();
    requests.iter().for_each(|request| counts.take(request));
    counts
}

/// Pages of a list would not be counted, or each question would be one.
#[test]
fn a_question_for_the_version_is_no_list_and_a_page_is_one() {
    for (verb, query, is_a_list, asks) in [
        ("list", "limit=500", true, false),
        ("list", "limit=1", false, true),
        ("list", "labelSelector=a&limit=1", false, true),
        ("list", "limit=1&continue=next", true, false),
        ("watch", "sendInitialEvents=true", true, false),
        ("watch", "resourceVersion=7", false, false),
    ] {
        let event = request("n1", verb, query, 200);
        assert_eq!((is_list(&event), asks_version(&event)), (is_a_list, asks), "{verb} {query}");
    }
}

/// One that lists twice is not made up for by one that does not list.
#[test]
fn each_agent_is_counted_alone() {
    let counts = counted(&[
        request("n1", "watch", "sendInitialEvents=true", 200),
        request("n1", "list", "limit=500", 200),
        request("n2", "list", "limit=1", 503),
        request("n2", "list", "limit=1", 200),
        request("n2", "watch", "resourceVersion=7", 410),
        request("n2", "watch", "sendInitialEvents=true", 429),
    ]);
    let wanted = [
        ("n1", Asked { lists: 2, watches: 1, ..Asked::default() }),
        ("n2", Asked { refused_lists: 1, questions: 2, refused: 3, ..Asked::default() }),
    ];
    assert_eq!(counts.by_agent("claims"), wanted.into());
    assert!(counts.by_agent("secrets").is_empty());
    assert_eq!(counts.lists_of_agents(), 3);
}

/// An agent that asks again after it waited in vain would look like one that lists twice.
#[test]
fn what_was_answered_after_ten_seconds_was_given_up() {
    for (answered, lists, refused) in [("07:59:59.999999Z", 1, 0), ("08:00:00.100000Z", 0, 1)] {
        let mut event = request("n1", "watch", "sendInitialEvents=true", 200);
        event["requestReceivedTimestamp"] = json!("2026-11-30T07:59:50.100000Z");
        event["stageTimestamp"] = json!(format!("2026-11-30T{answered}"));
        let asked = Asked { lists, refused_lists: refused, watches: lists, refused, ..Asked::default() };
        assert_eq!(counted(&[event]).by_agent("claims"), [("n1", asked)].into(), "{answered}");
    }
}

/// The log is being written while it is read.
#[test]
fn a_log_is_read_on_from_the_last_whole_line() {
    let folder = TempDir::new().unwrap();
    let path = folder.write("audit.json", "").unwrap();
    let mut audit = Audit::new(path.clone());
    let write = |text: &str| {
        File::options().append(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
    };
    let line = |node, verb| request(node, verb, "", 200).to_string();
    let patch = line("n1", "patch");
    write(&format!("{}\n{}", line("n1", "list"), &patch[..20]));
    let mark = audit.read().clone();
    assert_eq!((mark.of("agent", &["list"], "claims"), mark.writes()), (1, 0));
    write(&format!("{}\n{}\n", &patch[20..], line("n2", "list")));
    let since = audit.read().since(&mark);
    assert_eq!((since.of("agent", &["list"], "claims"), since.writes()), (1, 1));
    let listed = Asked { lists: 1, ..Asked::default() };
    assert_eq!(since.by_agent("claims"), [("n2", listed)].into());
    let mark = audit.read().clone();
    assert_eq!(audit.read().since(&mark), Counts::default());
}

/// What an API server wrote before would be missing.
#[test]
#[should_panic(expected = "rotated")]
fn a_log_that_begins_again_is_no_log_of_everything() {
    let folder = TempDir::new().unwrap();
    let path = folder.write("audit.json", format!("{}\n", request("n1", "list", "", 200))).unwrap();
    let mut audit = Audit::new(path);
    audit.read();
    folder.write("audit.json", "").unwrap();
    audit.read();
}
