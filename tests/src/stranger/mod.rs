//! Strangers who know a connection's addresses and ports, against a connection through Vestibule and a direct one between
//! the same two hosts: both get the same packets of every kind, each counted from its own sequence numbers.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use common::decide::maglev::mix;
use common::maps::flow::{BackendTuple, ClientTuple, Flow, Pending, Reply};
use common::maps::name;
use userspace::dataplane::keepalive::SILENT_SECS;

use crate::addresses::{FAMILIES, Family, TENANT_NETS, TLS_PORT, backend, balancer, server_name};
use crate::config::{Backend, Config};
use crate::daemon::Daemon;
use crate::dice::Dice;
use crate::hello::hello;
use crate::packet::Segment;
use crate::pinned::pinned_entries;
use crate::server::{Server, read_line, reset};
use crate::tap::Tap;
use crate::tcp_option::TcpOption;
use crate::tls;
use crate::topology::{CLIENT_DEVICE, Lab, UPLINK};
use crate::tuple::client_tuple;
use crate::walker::Walker;

/// ICMP messages.
mod error;
/// Packets of any kind; segments.
mod forged;
/// Fragments, options, other protocols, garbage.
mod unusual;

use forged::{Forged, Side};

/// Forged packets between two looks at the connections.
const ROUND: u64 = 2_000;
/// One round in this many has numbers inside both windows, which may well end a connection.
const HITS: u64 = 6;
/// Its length: a direct connection survives only a few such packets.
const HIT_ROUND: u64 = 20;
/// Numbers that the answer to the last question repeats: several segments in each direction, so that a forged MTU would show.
const MANY: u64 = 700;
/// How long an answer may take: several retransmissions.
const PATIENCE: Duration = Duration::from_secs(5);
const ECHO_PORT: u16 = 7000;

/// What happened.
#[derive(Clone, Default)]
pub struct Tally {
    /// Forged packets that each connection got.
    pub packets: u64,
    /// Looks at a pair of connections, and those after which the direct one still carried data in both directions.
    pub looks: u32,
    pub survived: u32,
    /// The same for numbers inside both windows.
    pub hits: u32,
    pub survived_hits: u32,
    /// Of those, the ones after which the other connection had taken something that was forged, and no end reset it.
    pub taken: u32,
    /// The connections through Vestibule that had these.
    pub hit: Vec<ClientTuple>,
}

impl Tally {
    /// Whether hits hang hardly more connections through Vestibule than direct ones. Ends of both take the same packets, but for what
    /// depends on the windows that each has seen: that is so in about one of ten hits that the direct connection survives. A
    /// connection that is taken more often than one time in four, a few hits aside, believes what its ends do not.
    pub fn is_taken_seldom(&self) -> bool {
        self.taken * 4 <= self.survived_hits + 8
    }
}

/// All but the names of connections.
impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, looks, survived, hits, survived_hits, taken, .. } = self;
        write!(f, "{packets} packets; {survived} of {looks} direct connections survived, ")?;
        write!(f, "{survived_hits} of {hits} hits, with {taken} taken through Vestibule")
    }
}

/// A connection to the echo server.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    /// Numbers that were sent so far.
    asked: u64,
    /// Where its client's packets reach the node, and its server's.
    sides: [Side; 2],
}

impl Line {
    /// Sends this many numbers, others each time, and reads them back.
    fn ask(&mut self, numbers: u64) -> Result<()> {
        let bytes: Vec<u8> =
            (self.asked..).take(numbers as usize).flat_map(|n| mix(n).to_be_bytes()).collect();
        self.asked += numbers;
        let mut echo = vec![0; bytes.len()];
        self.stream.write_all(&bytes).context("asking")?;
        self.stream.read_exact(&mut echo).context("reading")?;
        let wrong = echo.iter().zip(&bytes).position(|(echo, byte)| echo != byte);
        ensure!(wrong.is_none(), "another answer, from byte {wrong:?} of {}", bytes.len());
        Ok(())
    }
}

/// Whether an end took a forged byte, FIN or timestamp, which Vestibule passes on, and nobody reset the connection. Of packets
/// inside both windows one end of two may take some that the other does not: how far behind an acknowledgement may be
/// depends on the windows that it has seen.
fn is_taken(error: &anyhow::Error) -> bool {
    let end = error.downcast_ref::<io::Error>().map(io::Error::kind);
    matches!(end, None | Some(ErrorKind::UnexpectedEof | ErrorKind::WouldBlock))
}

/// The two hosts and the node between them. Fields drop in order: the daemon first.
#[derive(Debug)]
pub struct Rig {
    pub daemon: Daemon,
    _servers: Vec<Server>,
    /// Where packets of clients and of servers are seen and sent.
    taps: [Tap; 2],
    macs: [([u8; 6], [u8; 6]); 2],
    pub lab: Lab,
}

impl Rig {
    /// Starts Vestibule and the servers; direct connections pass through the node's own forwarding.
    pub fn new() -> Result<Self> {
        let lab = Lab::with(&crate::topology::Options { servers: false, ..Default::default() })?;
        let servers = lab.echo_servers(ECHO_PORT)?;
        let mut config = Config::lab_on(ECHO_PORT);
        config.route_mut("tenant-a").backends =
            FAMILIES.map(|family| Backend::new(backend(family, 0, 0), ECHO_PORT)).to_vec();
        let daemon = lab.vestibule(&config)?;
        let tenant = &lab.tenants[0];
        for family in FAMILIES {
            let gateway = balancer(family, TENANT_NETS[0]);
            tenant.namespace.ip(&format!("route add default via {gateway}\n"))?;
        }
        let taps = [Tap::open(&lab.client, UPLINK)?, Tap::open(&tenant.namespace, UPLINK)?];
        let macs = [
            (lab.balancer.mac(CLIENT_DEVICE)?, lab.client.mac(UPLINK)?),
            (lab.balancer.mac(tenant.name)?, tenant.namespace.mac(UPLINK)?),
        ];
        Ok(Self { daemon, _servers: servers, taps, macs, lab })
    }

    /// Gives as many forged packets to pairs of connections, and looks at them again and again.
    pub fn run(&self, seed: u64, packets: u64) -> Result<Tally> {
        let (mut dice, mut tally) = (Dice::new(seed, 0), Tally::default());
        let mut pairs = FAMILIES.map(|_| None);
        for round in 0.. {
            if tally.packets >= packets {
                break;
            }
            let place = round as usize % FAMILIES.len();
            let pair = match pairs[place].take() {
                Some(pair) => pair,
                None => [self.open(FAMILIES[place], true)?, self.open(FAMILIES[place], false)?],
            };
            let hit = dice.one_in(HITS);
            pairs[place] = self
                .round(&mut dice, &mut tally, pair, hit)
                .with_context(|| format!("seed {seed}, round {round}, {:?}, hit: {hit}", FAMILIES[place]))?;
        }
        for line in pairs.into_iter().flatten().flatten() {
            reset(&line.stream)?;
        }
        Ok(tally)
    }

    /// One round; returns the pair if both connections live on.
    fn round(
        &self,
        dice: &mut Dice,
        tally: &mut Tally,
        [mut through, mut direct]: [Line; 2],
        hit: bool,
    ) -> Result<Option<[Line; 2]>> {
        for line in [&mut through, &mut direct] {
            self.learn(line).context("before any forged packet")?;
        }
        let mut sent = 0;
        for _ in 0..if hit { HIT_ROUND } else { ROUND } {
            let forged = Forged::any(dice, hit, direct.sides[0].from.is_ipv4());
            let side = usize::from(!forged.from_client);
            for line in [&through, &direct] {
                for frame in forged.frames(&line.sides[side]) {
                    self.send(side, &frame)?;
                    sent += 1;
                }
            }
        }
        tally.packets += sent / 2;
        let (looks, survived) = match hit {
            false => (&mut tally.looks, &mut tally.survived),
            true => (&mut tally.hits, &mut tally.survived_hits),
        };
        *looks += 1;
        if hit {
            tally.hit.push(client_tuple(through.sides[0].from, through.sides[0].to));
        }
        if direct.ask(MANY).is_ok() {
            *survived += 1;
            if let Err(error) = through.ask(MANY) {
                if !(hit && is_taken(&error)) {
                    return Err(
                        error.context("the direct connection survives, the one through Vestibule does not")
                    );
                }
                tally.taken += 1;
            }
            if !hit {
                return Ok(Some([through, direct]));
            }
        }
        Self::end([through, direct])
    }

    /// Aborts both connections.
    fn end(lines: [Line; 2]) -> Result<Option<[Line; 2]>> {
        for line in lines {
            reset(&line.stream)?;
        }
        Ok(None)
    }

    /// Sends a frame into the node; waits while the queue is full.
    fn send(&self, side: usize, frame: &[u8]) -> Result<()> {
        loop {
            match self.taps[side].send(frame) {
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    std::thread::sleep(Duration::from_micros(50));
                }
                sent => return sent.context("sending"),
            }
        }
    }

    /// Opens a connection through Vestibule, or a direct one.
    fn open(&self, family: Family, through: bool) -> Result<Line> {
        let server = SocketAddr::new(backend(family, 0, 0), ECHO_PORT);
        let to = if through { self.lab.vip(family, TLS_PORT) } else { server };
        let mut stream = self.lab.client.run(|| tls::dial(to)).context("connecting")?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let bytes = if through { hello().name(server_name(0)).bytes() } else { vec![b'h'; 8] };
        for tap in &self.taps {
            tap.drain()?;
        }
        stream.write_all(&bytes)?;
        ensure!(read_line(&mut stream)?.as_deref() == Some("tenant-a/0"), "another server");
        stream.read_exact(&mut vec![0; bytes.len()]).context("reading the hello back")?;
        let client = stream.local_addr()?;
        // The last genuine packet that the server got shows its address and port there.
        let ours = if through { balancer(family, TENANT_NETS[0]) } else { client.ip() };
        let seen = self.seen(1, |segment| segment.to == server && segment.from.ip() == ours)?;
        let side = |place: usize, from, to| Side {
            from,
            to,
            ethernet: self.macs[place],
            seq: 0,
            ack: 0,
            timestamps: (0, 0),
        };
        let sides = [side(0, client, to), side(1, server, seen.from)];
        Ok(Line { stream, asked: 0, sides })
    }

    /// Returns the last segment seen at a side that `is` describes.
    fn seen(&self, side: usize, is: impl Fn(&Segment) -> bool) -> Result<Segment> {
        let frames = self.taps[side].drain()?;
        let mut segments = frames.iter().rev().filter_map(|frame| Segment::parse(frame));
        segments.find(is).with_context(|| format!("nothing was seen at side {side}"))
    }

    /// Learns the numbers that both ends have reached.
    fn learn(&self, line: &mut Line) -> Result<()> {
        // Earlier packets that are still in flight arrive first.
        std::thread::sleep(Duration::from_millis(20));
        for tap in &self.taps {
            tap.drain()?;
        }
        line.ask(1)?;
        // The client's last acknowledgement may be delayed: Linux waits for at most 40 ms.
        std::thread::sleep(Duration::from_millis(60));
        for (place, side) in line.sides.iter_mut().enumerate() {
            let segment = self.seen(place, |segment| (segment.from, segment.to) == (side.to, side.from))?;
            (side.seq, side.ack) = (segment.ack, segment.end());
            let stamps = segment.options.iter().find_map(|option| match option {
                TcpOption::Timestamps(value, echo) => Some((*echo, *value)),
                _ => None,
            });
            side.timestamps = stamps.context("no timestamps")?;
        }
        Ok(())
    }

    /// Has the ends of all flows asked as after hours of silence, by the binary `walker`, long before `idleTimeout`. Those whose
    /// time is over for another reason are ended.
    pub fn ask_silent(&self, walker: &str) {
        let mut walker = Walker::start(walker, &self.lab, &self.daemon);
        // The first walk finds what is held, and the second one asks or ends it.
        for ahead_secs in [0, SILENT_SECS + 1] {
            walker.walk(ahead_secs);
        }
    }

    /// Returns the number of entries in FLOWS, PENDING and NATS, flows that were hit and their entries in NATS aside. A
    /// stranger who knows both numbers can have bytes or a FIN believed that no end sent: the RST of the end is then at
    /// another number, and the flow stays until its ends are asked.
    pub fn entries(&self, tally: &Tally) -> Result<[usize; 3]> {
        let pin = |name: &str| self.daemon.pins().join(name);
        let flows = pinned_entries::<ClientTuple, Flow>(&pin(name::FLOWS))?;
        let hit = flows.iter().filter(|(client, _)| tally.hit.contains(client)).count();
        let nats = pinned_entries::<BackendTuple, Reply>(&pin(name::NATS))?.len();
        let pending = pinned_entries::<ClientTuple, Pending>(&pin(name::PENDING))?.len();
        Ok([flows.len() - hit, pending, nats.saturating_sub(hit)])
    }
}
