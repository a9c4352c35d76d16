//! Which watches run.

use super::news::Message;
use super::store::Options;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

pub(super) fn spawn(_watches: &mut JoinSet<()>, _options: Options, _outbox: mpsc::Sender<Message>) {}
