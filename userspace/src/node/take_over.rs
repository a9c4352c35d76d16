//! How the loop becomes the writer, and how it hands the maps over.

use std::mem::replace;
use std::time::Instant;

use tracing::{info, warn};

use super::error::NodeError;
use super::handover::{Gift, HandoverError, Wish};
use super::notify::{self, tell};
use super::orders::{Cause, Outcome};
use super::reconcile::{Node, millis};
use super::role::{Beginning, Lock, Reader, Stage, TakeError};
use crate::outputs::{StartError, Writer};

impl Node {
    /// Starts to become the writer, once there is something to write. Everything slow is done before the
    /// request, so that the maps are without a writer only for a moment.
    pub(super) fn take_over(&mut self) -> Result<(), NodeError> {
        if !self.role.is_due() || self.state.is_none() {
            return Ok(());
        }
        if !self.role.reader.asks && matches!(self.role.lock(), Ok(Lock::Taken(_))) {
            self.role.reader.wait();
            return Ok(());
        }
        if let Some(wanted) = self.wanted() {
            self.orders.prepare(&wanted);
            self.role.stage = Stage::Preparing(Instant::now());
        }
        Ok(())
    }

    /// Handles that all outputs have prepared.
    pub(super) fn prepared(&mut self, outcome: Result<(), StartError>) -> Result<(), NodeError> {
        let Stage::Preparing(since) = self.role.stage else { return Ok(()) };
        match outcome.and_then(|()| self.role.lock()) {
            Ok(Lock::Ours(right)) => self.write_first(Beginning { right, gift: None, since }),
            Ok(Lock::Taken(_)) if !self.role.reader.asks => {
                self.role.stage = Stage::Reading;
                self.role.reader.wait();
            }
            Ok(Lock::Taken(by)) => match self.role.meeting.clone() {
                Some(meeting) => {
                    self.role.ask(&meeting);
                    self.role.stage = Stage::Asking(since);
                }
                None => return Err(StartError::from(by).into()),
            },
            Err(error) => return self.failed(error.into()),
        }
        Ok(())
    }

    /// Handles the answer of the present writer.
    pub(super) fn asked(&mut self, outcome: Result<(Gift, Writer), TakeError>) -> Result<(), NodeError> {
        let Stage::Asking(since) = self.role.stage else { return Ok(()) };
        match outcome {
            Ok((gift, right)) => self.write_first(Beginning { right, gift: Some(gift), since }),
            Err(error) => return self.failed(error),
        }
        Ok(())
    }

    /// Uses the right to write: orders the outputs to hold the last compiled state.
    fn write_first(&mut self, beginning: Beginning) {
        self.cause = Cause::default();
        if let Some(wanted) = self.wanted() {
            self.orders.apply(&beginning.right, wanted, self.cause, beginning.since);
            self.role.stage = Stage::Beginning(beginning);
        }
    }

    /// Handles the answers to the first order.
    pub(super) async fn begun(&mut self, outcome: Outcome) -> Result<(), NodeError> {
        let beginning = match replace(&mut self.role.stage, Stage::Reading) {
            Stage::Beginning(beginning) => beginning,
            other => {
                self.role.stage = other;
                return Ok(());
            }
        };
        if let Err(error) = outcome.result {
            self.orders.release();
            self.role.stage = Stage::Releasing(beginning.right, None);
            return self.refused(error.into());
        }
        let (since, handed_over) = (beginning.since, beginning.gift.is_some());
        match self.role.begin(beginning).await {
            Ok(writing) => self.role.stage = Stage::Writing(writing),
            Err((right, error)) => {
                self.orders.release();
                self.role.stage = Stage::Releasing(right, None);
                return self.refused(error);
            }
        }
        let devices = self.orders.devices();
        if self.role.meeting.is_some() {
            info!(handed_over, devices, took = ?since.elapsed(), "writes the maps of this node");
        }
        if let Some(in_force) = self.orders.in_force() {
            let desired = &in_force.desired;
            info!(
                listeners = desired.listeners.len(),
                routes = desired.routes.len(),
                devices,
                took_ms = millis(self.pace.begun.elapsed()),
                "ready"
            );
            if self.sources.is_complete() {
                self.saving.put(desired);
                self.saving.save_announcement(self.sources.node().announcement.as_ref());
                self.saving.save_api_servers(&self.sources.node().api_servers);
            }
        }
        if devices.is_empty() {
            warn!("no device yet: neither a default route nor a route to a backend");
        }
        tell(notify::State::Ready);
        self.settle();
        self.telemetry.begin();
        self.tell();
        // Order what changed since the first order.
        self.order(Instant::now());
        Ok(())
    }

    /// Handles an attempt that failed before anything was written.
    fn failed(&mut self, error: TakeError) -> Result<(), NodeError> {
        self.role.stage = Stage::Reading;
        self.refused(error)
    }

    /// Without a meeting folder, a refused start ends the process. Otherwise it is tried again.
    fn refused(&mut self, error: TakeError) -> Result<(), NodeError> {
        match error {
            TakeError::Output(error) if self.role.meeting.is_none() || error.is_fatal() => Err(error.into()),
            error => {
                self.role.reader.failed();
                warn!(%error, "the maps cannot be taken over yet");
                self.telemetry.view(|view| view.trouble = Some(error.to_string()));
                Ok(())
            }
        }
    }

    /// Hands the maps over to the next process.
    pub(super) async fn give(&mut self, wish: Wish) {
        match replace(&mut self.role.stage, Stage::Reading) {
            Stage::Writing(writing) => {
                // The next writer saves what it puts into effect.
                self.saving.forget();
                self.role.reader = Reader::retired();
                self.orders.release();
                self.role.stage = Stage::Releasing(writing.right, Some(wish));
                self.telemetry.end().await;
                info!("hands the maps over to the next agent");
            }
            other => self.role.stage = other,
        }
    }

    /// Handles that no output writes any more: releases the lock.
    pub(super) fn released(&mut self) {
        match replace(&mut self.role.stage, Stage::Reading) {
            Stage::Releasing(right, wish) => {
                drop(right);
                if let Some(wish) = wish {
                    self.role.given.spawn(wish.given());
                }
            }
            other => self.role.stage = other,
        }
    }

    /// Handles the result of a handover.
    pub(super) fn given(&mut self, outcome: Result<(), HandoverError>) {
        match outcome {
            Ok(()) => info!("the next agent writes the maps"),
            Err(error) => {
                warn!(%error, "the next agent did not take the maps; they are taken back");
                self.role.reader.again = Instant::now();
            }
        }
    }
}
