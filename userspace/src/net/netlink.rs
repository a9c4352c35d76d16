//! Requests to the kernel and their answers, on one rtnetlink socket.

use std::io;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

/// The number of requests sent at once. Their answers must fit into the socket's buffer.
const BATCH: usize = 64;

/// Why a request to the kernel failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The socket failed.
    #[error("rtnetlink: {0}")]
    Socket(#[from] io::Error),
    /// An answer could not be parsed.
    #[error("rtnetlink: an answer that cannot be read: {0}")]
    Answer(String),
}

/// The answer to one message.
enum Answer {
    /// It was carried out.
    Done,
    Object(Box<RouteNetlinkMessage>),
    Refused(io::Error),
}

/// An rtnetlink socket.
#[derive(Debug)]
pub(super) struct Netlink {
    socket: Socket,
    buffer: Vec<u8>,
    sequence: u32,
    port: u32,
}

impl Netlink {
    pub(super) fn open() -> Result<Self, NetError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        let port = socket.bind_auto()?.port_number();
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, buffer: vec![0; 1 << 16], sequence: 0, port })
    }

    /// Its number (`nlmsg_pid`), by which those who watch know who made a change.
    pub(super) fn port(&self) -> u32 {
        self.port
    }

    /// Returns all objects of a kind.
    pub(super) fn dump(
        &mut self,
        question: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetError> {
        let bytes = self.message(question, NLM_F_REQUEST | NLM_F_DUMP);
        self.socket.send(&bytes, 0)?;
        let (sequence, mut objects, mut ended) = (self.sequence, Vec::new(), false);
        while !ended {
            self.receive(|message| {
                if message.header.sequence_number != sequence {
                    return Ok(());
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(object) => objects.push(object),
                    NetlinkPayload::Done(_) => ended = true,
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    _ => {}
                }
                Ok(())
            })?;
        }
        Ok(objects)
    }

    /// Returns the answer to each request, in the same order; `None`: the kernel has none.
    pub(super) fn ask_all(
        &mut self,
        questions: impl IntoIterator<Item = RouteNetlinkMessage>,
    ) -> Result<Vec<Option<RouteNetlinkMessage>>, NetError> {
        let answers = self.send_all(questions.into_iter().map(|question| (question, NLM_F_REQUEST)))?;
        let object = |answer| match answer {
            Answer::Object(object) => Some(*object),
            Answer::Done | Answer::Refused(_) => None,
        };
        Ok(answers.into_iter().map(object).collect())
    }

    /// Has the kernel create objects. What it refuses is not reported.
    pub(super) fn create_all(
        &mut self,
        objects: impl IntoIterator<Item = RouteNetlinkMessage>,
    ) -> Result<(), NetError> {
        self.change_all(objects.into_iter().map(|object| (object, NLM_F_CREATE))).map(drop)
    }

    /// Has the kernel change objects, each with these flags besides. Returns its answers, in the same order.
    pub(super) fn change_all(
        &mut self,
        changes: impl IntoIterator<Item = (RouteNetlinkMessage, u16)>,
    ) -> Result<Vec<io::Result<()>>, NetError> {
        let changes = changes.into_iter().map(|(change, flags)| (change, flags | NLM_F_REQUEST | NLM_F_ACK));
        let outcome = |answer| match answer {
            Answer::Refused(error) => Err(error),
            Answer::Done | Answer::Object(_) => Ok(()),
        };
        Ok(self.send_all(changes)?.into_iter().map(outcome).collect())
    }

    /// Sends messages, each of which has one answer.
    fn send_all(
        &mut self,
        questions: impl IntoIterator<Item = (RouteNetlinkMessage, u16)>,
    ) -> Result<Vec<Answer>, NetError> {
        let mut answers = Vec::new();
        let mut questions = questions.into_iter().peekable();
        while questions.peek().is_some() {
            let first = self.sequence.wrapping_add(1);
            let (mut bytes, mut asked) = (Vec::new(), 0);
            for (question, flags) in questions.by_ref().take(BATCH) {
                bytes.extend(self.message(question, flags));
                asked += 1;
            }
            let begin = answers.len();
            answers.resize_with(begin + asked, || Answer::Done);
            self.socket.send(&bytes, 0)?;
            let mut missing = asked;
            while missing > 0 {
                self.receive(|message| {
                    let place = message.header.sequence_number.wrapping_sub(first) as usize;
                    if let Some(answer) = answers.get_mut(begin + place).filter(|_| place < asked) {
                        missing -= 1;
                        *answer = match message.payload {
                            NetlinkPayload::InnerMessage(object) => Answer::Object(Box::new(object)),
                            NetlinkPayload::Error(error) if error.code.is_some() => {
                                Answer::Refused(error.to_io())
                            }
                            _ => Answer::Done,
                        };
                    }
                    Ok(())
                })?;
            }
        }
        Ok(answers)
    }

    fn message(&mut self, question: RouteNetlinkMessage, flags: u16) -> Vec<u8> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        // Every message starts at a multiple of four bytes.
        let mut bytes = vec![0; message.buffer_len().next_multiple_of(4)];
        message.serialize(&mut bytes);
        bytes
    }

    /// Receives the next datagram, and passes each of its messages to `take`.
    fn receive(
        &mut self,
        mut take: impl FnMut(NetlinkMessage<RouteNetlinkMessage>) -> io::Result<()>,
    ) -> Result<(), NetError> {
        let length = self.socket.recv(&mut self.buffer.as_mut_slice(), 0)?;
        let mut rest = self.buffer.get(..length).unwrap_or_default();
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|e| NetError::Answer(e.to_string()))?;
            let used = (message.header.length as usize).next_multiple_of(4);
            take(message)?;
            rest = rest.get(used..).unwrap_or_default();
        }
        Ok(())
    }
}
