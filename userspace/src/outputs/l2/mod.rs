//! ARP and neighbour discovery as an output: which addresses the programs answer for, and announcements to the segments. A thread
//! of its own, so that neither a compile nor a map write delays an announcement.

/// Which addresses are announced on which devices.
mod wanted;
/// Who may announce what in a cluster.
mod candidates;
/// Who announces what on a segment.
mod ownership;
/// Tables of bids, in frames.
mod parts;
/// Whether anything is received from a segment.
mod reception;
/// What a device receives and sends.
mod speaker;
/// The speakers of all devices.
mod speakers;
/// The stamps of an agent that has left the maps to the next one.
mod stamps;
/// The nodes that announced addresses before this one.
mod previous;
/// Devices of this node on one segment.
mod twins;
/// Frames of other hosts.
mod readers;
/// When announcements are sent.
mod schedule;
/// Why an address has the owner that it has.
mod why;
/// What is known of segments, as it is read.
mod picture;
/// What is known of segments, for people and metrics.
mod shown;
/// What the kernel holds.
mod kernel;
/// What is announced, and how.
mod announcements;
/// Addresses that other hosts have.
mod foreign;
/// What the thread that announces is sent.
mod task;
/// The thread that announces.
mod announcer;

use std::io;
use std::sync::Arc;
use std::sync::mpsc;
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Order, Output, Pins, Word, Writer};
use crate::model::Segments;
use announcer::Announcer;
use task::Task;

pub(crate) use foreign::Foreign;
pub(crate) use kernel::leave_groups;
#[cfg(test)]
pub(crate) use picture::ClaimShown;
pub(crate) use picture::{CandidateShown, Picture, VipShown};
pub(crate) use shown::{Asker, written};
pub(crate) use task::Served;
pub(crate) use why::Why;

/// The channel to the thread that announces.
#[derive(Debug)]
pub(crate) struct L2Output {
    tasks: mpsc::Sender<Task>,
    words: UnboundedReceiver<Word>,
    foreign: Foreign,
}

/// Where the maps' output reports which orders it has carried out: an address is announced only once it is served.
#[derive(Clone, Debug)]
pub(crate) struct ServedSender(mpsc::Sender<Task>);

impl L2Output {
    /// Starts the thread. It does not change anything yet. `node` is the node's name in its cluster, where the nodes settle among
    /// themselves who announces an address; `None`: it is alone, and announces what it serves if the settings say so.
    /// What is counted on segments goes to `counts`.
    pub(crate) fn start(pins: Pins, node: Option<Arc<str>>, counts: Segments) -> io::Result<Self> {
        let (tasks, received) = mpsc::channel();
        let (words, said) = unbounded_channel();
        let foreign = Foreign::default();
        let seen = (counts, foreign.clone());
        let announcer = Announcer::new(pins, node, (tasks.clone(), received), words, seen);
        thread::Builder::new().name("l2".into()).spawn(move || announcer.serve())?;
        Ok(Self { tasks, words: said, foreign })
    }

    /// Returns the addresses that other hosts have, as they are found.
    pub(crate) fn foreign(&self) -> Foreign {
        self.foreign.clone()
    }

    /// Returns where the maps' output is to report.
    pub(crate) fn served(&self) -> ServedSender {
        ServedSender(self.tasks.clone())
    }

    /// Returns what asks for what is known of segments.
    pub(crate) fn asker(&self) -> Asker {
        Asker(self.tasks.clone())
    }

    /// Sends a task. If the thread is gone, [`Output::holds`] reports it.
    fn ask(&self, task: Task) {
        drop(self.tasks.send(task));
    }
}

impl Drop for L2Output {
    fn drop(&mut self) {
        self.ask(Task::End);
    }
}

impl ServedSender {
    /// Reports the answer to an order.
    pub(crate) fn send(&self, served: Served) {
        drop(self.0.send(Task::Served(served)));
    }
}

impl Output for L2Output {
    fn prepare(&mut self, _: Order) {
        self.ask(Task::Prepare);
    }

    fn apply(&mut self, _: &Writer, order: Order) {
        self.ask(Task::Apply(Box::new(order)));
    }

    fn release(&mut self) {
        self.ask(Task::Release);
    }

    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word> {
        let gone = || Word::Gone(io::Error::other("the thread that announces addresses is gone").into());
        self.words.poll_recv(context).map(|word| word.unwrap_or_else(gone))
    }
}
