//! The ports at which the node says by HTTP whether it leads to ready endpoints of a Service (`spec.healthCheckNodePort`), as an output. A
//! thread of its own, so that neither a compile nor a map write delays an answer, and no client delays those.

/// What is said at each port. Pure.
mod answer;
/// The thread that answers.
mod server;

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU16;
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Order, Output, Word, Writer};
use crate::plan::Health;
use server::Server;

/// A task for the thread.
#[derive(Debug)]
enum Task {
    Prepare,
    /// An order with this number. `is_refusing`: the node takes no new connections.
    Apply {
        number: u64,
        is_refusing: bool,
    },
    /// What the maps hold. `is_refusing`: they take no new connections.
    Health {
        health: BTreeMap<NonZeroU16, Health>,
        is_refusing: bool,
    },
    Release,
    End,
}

/// The channel to the thread that answers.
#[derive(Debug)]
pub(crate) struct HealthOutput {
    tasks: UnboundedSender<Task>,
    words: UnboundedReceiver<Word>,
}

/// Where the maps' output reports to which endpoints it leads: what it does not hold is not healthy.
#[derive(Clone, Debug)]
pub(crate) struct HealthSender(UnboundedSender<Task>);

impl HealthOutput {
    /// Starts the thread. No port is open yet.
    pub(crate) fn start() -> io::Result<Self> {
        let (tasks, received) = unbounded_channel();
        let (words, said) = unbounded_channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let server = Server::new(received, words);
        thread::Builder::new().name("health".into()).spawn(move || runtime.block_on(server.serve()))?;
        Ok(Self { tasks, words: said })
    }

    /// Returns where the maps' output is to report.
    pub(crate) fn sender(&self) -> HealthSender {
        HealthSender(self.tasks.clone())
    }

    /// Sends a task. If the thread is gone, [`Output::holds`] reports it.
    fn ask(&self, task: Task) {
        drop(self.tasks.send(task));
    }
}

impl Drop for HealthOutput {
    fn drop(&mut self) {
        self.ask(Task::End);
    }
}

impl HealthSender {
    /// Reports to which endpoints the maps lead, by port, and whether they refuse new connections.
    pub(crate) fn send(&self, health: BTreeMap<NonZeroU16, Health>, is_refusing: bool) {
        drop(self.0.send(Task::Health { health, is_refusing }));
    }
}

impl Output for HealthOutput {
    fn prepare(&mut self, _: Order) {
        self.ask(Task::Prepare);
    }

    fn apply(&mut self, _: &Writer, order: Order) {
        let is_refusing = order.is_withdrawn || order.node.is_draining;
        self.ask(Task::Apply { number: order.number, is_refusing });
    }

    fn release(&mut self) {
        self.ask(Task::Release);
    }

    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word> {
        let gone = || Word::Gone(io::Error::other("the thread that answers health checks is gone").into());
        self.words.poll_recv(context).map(|word| word.unwrap_or_else(gone))
    }
}
