//! The kernel's maps as an output. A thread plans and writes, so that neither the first load of a million
//! routes nor a slow kernel delays the loop.

/// Which devices have the program.
mod devices;
/// The egress to backends.
mod egress;
/// The work done before there is the right to write.
mod prepared;
/// Devices with XDP in front.
mod fronts;
mod hooks;
/// Whether other ends take what XDP answers there.
mod answers;
/// The pair by which clients on the node itself come.
mod node_clients;
/// Whose that pair is, and its end.
mod node_pair;
/// To which addresses these are led.
mod node_routes;
/// What the kernel holds, and the writes that keep it in step.
mod control;
/// What cannot be done, and what is not held.
mod complaints;
/// What other programs changed.
mod drift;
/// What keeps a configuration from being carried out on this node.
mod checks;
/// The thread that ends connections.
mod reaper;
/// The thread that orders to it pass first.
mod ahead;
/// What is done after a removal.
mod ended;
/// Which connections are older.
mod generation;
/// What that thread does to the kernel.
mod ender;
/// Routes that refuse connections.
mod refusing;
/// What was removed and is still had.
mod resting;
/// How often all flows are checked.
mod walked;
/// The thread that writes.
mod worker;

use std::io;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Order, Output, Pins, Word, Writer};
use crate::dataplane::load::{self, LoadError};
use crate::model::{Problem, Settings};
use worker::{Task, Worker};

pub(crate) use devices::Choice;
pub(crate) use node_pair::leave as leave_node_clients;
pub(crate) use node_routes::{Left, named};
pub(crate) use prepared::Options;

/// The channel to the thread that writes the maps.
#[derive(Debug)]
pub(crate) struct MapsOutput {
    tasks: mpsc::Sender<Task>,
    words: UnboundedReceiver<Word>,
}

impl MapsOutput {
    /// Starts the thread. It does not change anything yet.
    pub(crate) fn start(options: Options) -> io::Result<Self> {
        let (tasks, received) = mpsc::channel();
        let (words, said) = unbounded_channel();
        let worker = Worker::new(options, received, words);
        thread::Builder::new().name("maps".into()).spawn(move || worker.serve())?;
        Ok(Self { tasks, words: said })
    }

    /// Sends a task. If the thread is gone, [`Output::holds`] reports it.
    fn ask(&self, task: Task) {
        drop(self.tasks.send(task));
    }
}

impl Output for MapsOutput {
    fn prepare(&mut self, order: Order) {
        self.ask(Task::Prepare(Box::new(order)));
    }

    fn apply(&mut self, _: &Writer, order: Order) {
        self.ask(Task::Apply(Box::new(order)));
    }

    fn release(&mut self) {
        self.ask(Task::Release);
    }

    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word> {
        let gone = || Word::Gone(io::Error::other("the thread that writes the maps is gone").into());
        self.words.poll_recv(context).map(|word| word.unwrap_or_else(gone))
    }
}

/// Writes the fixed sizes of pinned maps into `settings`. Returns a problem for each size that differed.
pub(crate) fn keep_sizes(pins: &Pins, settings: &mut Settings) -> Result<Vec<Problem>, LoadError> {
    let Some(pinned) = load::pinned_sizes(pins)? else { return Ok(Vec::new()) };
    let mut problems = Vec::new();
    for (setting, wanted, pinned) in [
        ("maxFlows", &mut settings.max_flows, pinned.flows),
        ("maxNames", &mut settings.max_names, pinned.names),
        ("maxHellos", &mut settings.max_hellos, pinned.hellos),
    ] {
        if *wanted != pinned {
            let problem = Problem::error(
                format!("settings.{setting}"),
                format!("cannot change while maps are pinned: they were made for {pinned}, which stays"),
                "put it back, or give the node new maps, which ends all connections: Node maintenance in deploy/README.md",
            );
            problems.push(problem.value(*wanted));
            *wanted = pinned;
        }
    }
    Ok(problems)
}
