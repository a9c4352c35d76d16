//! The thread that answers. It opens and closes ports, and changes what they say.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::response::IntoResponse;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tracing::{info, warn};

use super::Task;
use super::answer::{self, Answer};
use crate::http_server;
use crate::model::Problem;
use crate::outputs::{Done, Drifted, Held, Word};
use crate::plan::Health;

/// The most connections of all ports at once, each of which takes a file descriptor.
const CONNECTIONS: usize = 512;
/// The delay between attempts to bind a port that another process has.
const AGAIN: Duration = Duration::from_secs(1);
/// The header by which a load balancer may share its connections among nodes: the number of ready endpoints.
const WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// The state of the thread.
pub(super) struct Server {
    tasks: UnboundedReceiver<Task>,
    words: UnboundedSender<Word>,
    /// What the maps lead to, by port.
    health: BTreeMap<NonZeroU16, Health>,
    /// The node is to take no new connections.
    is_refusing: bool,
    /// The maps take none.
    do_maps_refuse: bool,
    /// The process writes the maps, and so serves the ports.
    is_writing: bool,
    /// The ports to serve.
    chosen: BTreeSet<NonZeroU16>,
    open: BTreeMap<NonZeroU16, Open>,
    /// Why ports could not be bound.
    unbound: BTreeMap<NonZeroU16, String>,
    /// What was reported last.
    said: Vec<Problem>,
    connections: Arc<Semaphore>,
}

/// A port that is served.
struct Open {
    answer: watch::Sender<Answer>,
    task: JoinSet<()>,
}

impl Server {
    /// A server without any port.
    pub(super) fn new(tasks: UnboundedReceiver<Task>, words: UnboundedSender<Word>) -> Self {
        Self {
            tasks,
            words,
            health: BTreeMap::new(),
            is_refusing: false,
            do_maps_refuse: false,
            is_writing: false,
            chosen: BTreeSet::new(),
            open: BTreeMap::new(),
            unbound: BTreeMap::new(),
            said: Vec::new(),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }

    /// Serves until the task to end, or until nobody asks any more.
    pub(super) async fn serve(mut self) {
        loop {
            let task = tokio::select! {
                task = self.tasks.recv() => task,
                () = sleep(AGAIN), if !self.unbound.is_empty() => {
                    self.follow().await;
                    self.report();
                    continue;
                }
            };
            match task {
                None | Some(Task::End) => return,
                Some(Task::Prepare) => self.say(Word::Prepared(Ok(()))),
                Some(Task::Apply { number, is_refusing }) => {
                    (self.is_writing, self.is_refusing) = (true, is_refusing);
                    self.follow().await;
                    self.said = self.problems();
                    let (problems, outcome) = (self.said.clone(), Ok(Done::default()));
                    let (exceptions, devices) = (Vec::new(), String::new());
                    self.say(Word::Holds(Held { number, outcome, problems, exceptions, devices }));
                }
                // What is said of an order from before the release comes too late.
                Some(Task::Health { .. }) if !self.is_writing => {}
                Some(Task::Health { health, is_refusing }) => {
                    (self.health, self.do_maps_refuse) = (health, is_refusing);
                    self.follow().await;
                    self.report();
                }
                Some(Task::Release) => {
                    self.is_writing = false;
                    self.health.clear();
                    self.follow().await;
                    self.say(Word::Released);
                }
            }
        }
    }

    /// Closes and opens ports, and changes what they say.
    async fn follow(&mut self) {
        self.chosen = answer::choose(&self.health, &self.chosen);
        let chosen = &self.chosen;
        self.unbound.retain(|port, _| chosen.contains(port));
        // The next process may bind them when this returns.
        for (_, mut closed) in self.open.extract_if(.., |port, _| !chosen.contains(port)) {
            closed.task.shutdown().await;
        }
        for (port, health) in self.health.iter().filter(|(port, _)| chosen.contains(port)) {
            let answer = Answer::of(health, self.is_refusing || self.do_maps_refuse);
            if let Some(open) = self.open.get(port) {
                open.answer.send_replace(answer);
                continue;
            }
            let service = &health.service;
            match http_server::bind_all(port.get()).await {
                Ok(listener) => {
                    let (answer, said) = watch::channel(answer);
                    let mut task = JoinSet::new();
                    task.spawn(http_server::serve_once(
                        listener,
                        router(said),
                        Arc::clone(&self.connections),
                    ));
                    self.open.insert(*port, Open { answer, task });
                    if self.unbound.remove(port).is_some() {
                        info!(port, %service, "health checks are answered now");
                    }
                }
                Err(error) => {
                    if !self.unbound.contains_key(port) {
                        warn!(%error, port, %service, "the port for health checks is not free; it is asked for until it is");
                    }
                    self.unbound.insert(*port, error.to_string());
                }
            }
        }
    }

    fn problems(&self) -> Vec<Problem> {
        answer::problems(&self.health, &self.chosen, &self.unbound)
    }

    /// Reports what is wrong, if that is news.
    fn report(&mut self) {
        let problems = self.problems();
        if self.said != problems {
            self.said.clone_from(&problems);
            self.say(Word::Drifted(Drifted { problems, exceptions: Vec::new(), repaired: 0 }));
        }
    }

    /// Sends a message. If the receiver is gone, no tasks arrive either, and the thread ends.
    fn say(&self, word: Word) {
        drop(self.words.send(word));
    }
}

/// Returns what answers each request, whatever its path.
fn router(said: watch::Receiver<Answer>) -> Router {
    Router::new().fallback(async move || {
        let Answer { is_ok, endpoints, body } = said.borrow().clone();
        let status = if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
        let kind = [(CONTENT_TYPE, "application/json"), (X_CONTENT_TYPE_OPTIONS, "nosniff")];
        (status, kind, [(WEIGHT, endpoints.to_string())], body).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ObjectName;
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpSocket, TcpStream};
    use tokio::sync::mpsc::unbounded_channel;
    use tokio::time::timeout;

    /// A server as a task, and its channels.
    struct Scene {
        tasks: UnboundedSender<Task>,
        words: UnboundedReceiver<Word>,
        _server: JoinSet<()>,
    }

    impl Scene {
        fn new() -> Self {
            let ((tasks, received), (words, said)) = (unbounded_channel(), unbounded_channel());
            let mut server = JoinSet::new();
            server.spawn(Server::new(received, words).serve());
            Self { tasks, words: said, _server: server }
        }

        fn tell(&self, task: Task) {
            self.tasks.send(task).unwrap();
        }

        /// Reports a Service at this port.
        fn lead(&self, port: u16, endpoints: usize) {
            self.lead_with(port, endpoints, false);
        }

        fn lead_with(&self, port: u16, endpoints: usize, is_refusing: bool) {
            let service = ObjectName { namespace: "tenant".into(), name: "lb".into() };
            let health = Health { service, is_held: true, endpoints };
            let health = [(NonZeroU16::new(port).unwrap(), health)].into();
            self.tell(Task::Health { health, is_refusing });
        }

        /// The problems of the next message, with the number of the order that it answers; 0: none.
        async fn heard(&mut self) -> (u64, Vec<String>) {
            let word = timeout(Duration::from_secs(10), self.words.recv()).await.unwrap().unwrap();
            let lines = |problems: Vec<Problem>| problems.iter().map(ToString::to_string).collect();
            match word {
                Word::Holds(held) => (held.number, lines(held.problems)),
                Word::Drifted(drifted) => (0, lines(drifted.problems)),
                Word::Released => (0, vec!["released".to_owned()]),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A free port. Outside of the range from which the kernel takes those of clients, or another test might have it a moment later.
    fn free() -> u16 {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let is_free = |port: &u16| TcpListener::bind((Ipv6Addr::UNSPECIFIED, *port)).is_ok();
        let from = 2_000 + (std::process::id() % 1_000) as u16;
        (from..first).find(is_free).unwrap()
    }

    /// The answer to a request from another connection, which the server ends; `None`: the port is closed.
    async fn ask(port: u16, address: &str) -> Option<String> {
        let mut stream = TcpStream::connect((address, port)).await.ok()?;
        stream.write_all(b"GET /any/path HTTP/1.1\r\nhost: node\r\n\r\n").await.ok()?;
        let mut text = String::new();
        timeout(Duration::from_secs(3), stream.read_to_string(&mut text)).await.expect("an answer").ok()?;
        Some(text)
    }

    /// Waits until both families have this status and this weight.
    async fn until(port: u16, status: &str, weight: usize) {
        let (head, weight) = (format!("HTTP/1.1 {status} "), format!("\r\n{WEIGHT}: {weight}\r\n"));
        for address in ["127.0.0.1", "::1"] {
            let mut last = None;
            for _ in 0..300 {
                last = ask(port, address).await;
                if last.as_ref().is_some_and(|text| text.starts_with(&head) && text.contains(&weight)) {
                    break;
                }
                sleep(Duration::from_millis(10)).await;
            }
            let text = last.unwrap_or_default();
            assert!(text.starts_with(&head) && text.contains(&weight), "{address}: {status}: {text}");
            assert!(text.contains("\r\ncontent-type: application/json\r\n"), "{text}");
        }
    }

    async fn until_closed(port: u16) {
        for _ in 0..300 {
            if ask(port, "127.0.0.1").await.is_none() && ask(port, "::1").await.is_none() {
                return;
            }
            sleep(Duration::from_millis(10)).await;
        }
        panic!("still open");
    }

    #[tokio::test]
    async fn a_port_says_what_the_maps_lead_to_and_whether_the_node_takes_connections() {
        let (mut scene, port) = (Scene::new(), free());
        scene.tell(Task::Apply { number: 1, is_refusing: false });
        assert_eq!(scene.heard().await, (1, vec![]));
        assert_eq!(ask(port, "127.0.0.1").await, None);
        scene.lead(port, 2);
        until(port, "200", 2).await;
        assert!(ask(port, "::1").await.unwrap().ends_with(
            r#"{"service":{"namespace":"tenant","name":"lb"},"localEndpoints":2,"serviceProxyHealthy":true}"#
        ));
        scene.lead(port, 0);
        until(port, "503", 0).await;
        scene.lead(port, 1);
        until(port, "200", 1).await;
        scene.tell(Task::Apply { number: 2, is_refusing: true });
        until(port, "503", 1).await;
        scene.tell(Task::Apply { number: 3, is_refusing: false });
        until(port, "200", 1).await;
        // What the command line wrote before this process started is read from the maps, before an order says it.
        scene.lead_with(port, 1, true);
        until(port, "503", 1).await;
        scene.tell(Task::Health { health: BTreeMap::new(), is_refusing: false });
        until_closed(port).await;
    }

    #[tokio::test]
    async fn a_port_that_another_process_has_is_reported_and_served_once_it_is_free() {
        let (mut scene, port) = (Scene::new(), free());
        // As kube-proxy has it: on one family.
        let other = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap();
        scene.tell(Task::Apply { number: 1, is_refusing: false });
        assert_eq!(scene.heard().await.0, 1);
        scene.lead(port, 1);
        let (_, problems) = scene.heard().await;
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        for part in ["Service tenant/lb", &port.to_string(), "in use", "serveHealthCheckNodePorts: false"] {
            assert!(problem.contains(part), "{problem}");
        }
        // Orders are answered all the same, and have the problem.
        scene.tell(Task::Apply { number: 2, is_refusing: false });
        assert_eq!(scene.heard().await, (2, problems));
        drop(other);
        assert_eq!(scene.heard().await, (0, vec![]), "no problem any more");
        until(port, "200", 1).await;
    }

    /// Each took one of sixteen, for five seconds.
    #[tokio::test]
    async fn clients_that_say_nothing_delay_no_answer() {
        let (mut scene, port) = (Scene::new(), free());
        scene.tell(Task::Apply { number: 1, is_refusing: false });
        assert_eq!(scene.heard().await.0, 1);
        scene.lead(port, 1);
        until(port, "200", 1).await;
        let mut silent = Vec::new();
        for _ in 0..100 {
            silent.push(TcpStream::connect(("127.0.0.1", port)).await.unwrap());
        }
        let answer = timeout(Duration::from_millis(900), ask(port, "127.0.0.1")).await;
        assert!(answer.expect("at once").unwrap().starts_with("HTTP/1.1 200 "));
    }

    /// The next agent of the node needs the ports.
    #[tokio::test]
    async fn ports_are_closed_when_the_maps_are_released_and_stay_so() {
        let (mut scene, port) = (Scene::new(), free());
        scene.tell(Task::Apply { number: 1, is_refusing: false });
        assert_eq!(scene.heard().await.0, 1);
        scene.lead(port, 1);
        until(port, "200", 1).await;
        let _idle = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        scene.tell(Task::Release);
        assert_eq!(scene.heard().await.1, ["released"]);
        let next = TcpSocket::new_v6().unwrap();
        next.set_reuseaddr(true).unwrap();
        next.bind((Ipv6Addr::UNSPECIFIED, port).into()).unwrap();
        let next = next.listen(1).expect("it is free at once");
        drop(next);
        // The maps' thread reports an order that it carried out before it was released.
        scene.lead(port, 1);
        sleep(Duration::from_millis(200)).await;
        assert_eq!(ask(port, "127.0.0.1").await, None);
    }
}
