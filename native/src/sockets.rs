//! The sockets of a broker: bytes go from a read to the fast path and its replies to a write without an object for either.
//!
//! One epoll holds all connections, and other descriptors when it is the event loop's own (native_loop.py); on any other
//! loop its descriptor is watched. `wait` finds out which have something, `receive` reads and serves those. What the fast path
//! cannot serve, the first bytes of a connection, ends and errors go to the connection's transport
//! (aerobee/remoting/direct.py), which is told about by an event; so does everything of a connection while the transport has
//! not said `serve`. All ready connections share one burst: its numbers are read and settled once.
//!
//! What always holds: replies leave only after the burst is settled. Nothing is sent past bytes that wait for the peer.
//! The lock is never held while Python runs, for a transport may be called from there.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyKeyError, PyOSError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use rustix::event::epoll;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};

use crate::backend::{Backend, REPLY_BYTES_MAX, State};
use crate::shared::{Burst, Gates};

const READ_BYTES: usize = 256 * 1024; // of one connection at a time
const TAIL_BYTES_MAX: usize = 128 * 1024; // a longer frame that is not whole is collected by the transport
const REPLIES_BYTES_MAX: usize = 4 << 20; // of all connections; the others wait for the next turn
const TURN_BYTES_MAX: usize = 2 << 20; // read from all connections; likewise
const READY_MAX: usize = 256;
const REPLIES_BYTES_KEPT: usize = 1 << 18;
const FIRST_TOKEN: u64 = 1 << 32; // what is below is a descriptor that is not ours to read
// The masks of Python's selectors.
const OTHER_READS: u32 = 1;
const OTHER_WRITES: u32 = 2;

// Kinds of events: what happened to a transport.
const DATA: u8 = 0; // bytes that it has to serve
const END: u8 = 1; // the peer has closed its half
const BROKEN: u8 = 2; // a system error, by number
const WRITABLE: u8 = 3; // bytes can be sent again
const FAULT: u8 = 4; // an exception of ours

struct Socket {
    descriptor: OwnedFd,
    owner: Py<PyAny>,
    served: Option<Served>, // None: its bytes go to the transport
    tail: Vec<u8>,          // the beginning of a frame that the fast path will serve
    reads: bool,
    writes: bool, // the transport has bytes that wait for the peer
    is_watched: bool,
}

/// What the fast path needs of a connection.
struct Served {
    connection: Py<PyAny>,
    born_host: Vec<u8>,
}

#[derive(Default)]
struct Inner {
    sockets: HashMap<u64, Socket>,
    last_token: u64,
    ready: Vec<Ready>, // what the last wait has found
    buffer: Vec<u8>,
    replies: Vec<u8>,
    outgoing: Vec<(u64, usize, usize)>, // token, and where its replies begin and end
}

type Ready = (u64, epoll::EventFlags);

#[pyclass(frozen, module = "aerobee_native")]
pub struct Sockets {
    epoll: OwnedFd,
    inner: Mutex<Inner>,
}

/// What is left of one read after the fast path, or all of it.
enum Rest {
    Nothing,
    Tail(usize),
    ForTransport(usize),
}

#[pymethods]
impl Sockets {
    #[new]
    fn new() -> PyResult<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system_error)?;
        Ok(Self { epoll, inner: Mutex::default() })
    }

    /// The descriptor that is readable when `receive` has something to do.
    fn fileno(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Take over a connected, non-blocking socket; returns its token. It is closed by `remove`.
    fn add(&self, descriptor: RawFd, owner: Py<PyAny>) -> PyResult<u64> {
        let descriptor = own(descriptor);
        let mut inner = self.inner();
        inner.last_token += 1;
        let token = FIRST_TOKEN + inner.last_token;
        let mut socket =
            Socket { descriptor, owner, served: None, tail: Vec::new(), reads: true, writes: false, is_watched: false };
        self.watch_socket(&mut socket, token)?;
        inner.sockets.insert(token, socket);
        Ok(token)
    }

    /// Close a socket and forget it.
    fn remove(&self, token: u64) {
        let socket = self.inner().sockets.remove(&token);
        drop(socket); // may run Python: not under the lock
    }

    /// Say what a transport waits for. While it waits to write, nothing is sent past it.
    fn watch(&self, token: u64, reads: bool, writes: bool) -> PyResult<()> {
        let mut inner = self.inner();
        let socket = inner.sockets.get_mut(&token).ok_or_else(unknown)?;
        (socket.reads, socket.writes) = (reads, writes);
        self.watch_socket(socket, token)
    }

    /// From now on the fast path serves what arrives, until bytes go to the transport again.
    fn serve(&self, token: u64, connection: Py<PyAny>, born_host: Vec<u8>) -> PyResult<()> {
        let replaced = {
            let mut inner = self.inner();
            let socket = inner.sockets.get_mut(&token).ok_or_else(unknown)?;
            socket.served.replace(Served { connection, born_host })
        };
        drop(replaced);
        Ok(())
    }

    /// From now on all bytes go to the transport. Returns those that the fast path had kept: they come first.
    fn stop_serving<'py>(&self, py: Python<'py>, token: u64) -> PyResult<Bound<'py, PyBytes>> {
        let (served, tail) = {
            let mut inner = self.inner();
            let socket = inner.sockets.get_mut(&token).ok_or_else(unknown)?;
            (socket.served.take(), std::mem::take(&mut socket.tail))
        };
        drop(served);
        Ok(PyBytes::new(py, &tail))
    }

    /// Whether the beginning of a frame is kept here.
    fn keeps(&self, token: u64) -> PyResult<bool> {
        self.inner().sockets.get(&token).map(|socket| !socket.tail.is_empty()).ok_or_else(unknown)
    }

    /// Send what the system takes now; returns how many bytes that was.
    fn send(&self, token: u64, data: &[u8]) -> PyResult<usize> {
        let inner = self.inner();
        let socket = inner.sockets.get(&token).ok_or_else(unknown)?;
        send_some(socket, data).map_err(system_error)
    }

    /// Have `wait` tell of a descriptor of somebody else; mask 0: no longer.
    fn watch_other(&self, descriptor: RawFd, mask: u32) -> PyResult<()> {
        let token = u64::try_from(descriptor).map_err(|_| unknown())?;
        let other = borrow(descriptor);
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, mask & OTHER_READS != 0);
        flags.set(epoll::EventFlags::OUT, mask & OTHER_WRITES != 0);
        let data = epoll::EventData::new_u64(token);
        let done = if mask == 0 {
            // A descriptor that was closed is gone already.
            epoll::delete(&self.epoll, other).or_else(|error| match error {
                Errno::NOENT | Errno::BADF => Ok(()),
                error => Err(error),
            })
        } else {
            match epoll::add(&self.epoll, other, data, flags) {
                Err(Errno::EXIST) => epoll::modify(&self.epoll, other, data, flags),
                added => added,
            }
        };
        done.map_err(system_error)
    }

    /// Wait until something is ready, below 0 seconds for ever: how many sockets are, for `receive`, and (descriptor, mask)
    /// of the others. Other threads run meanwhile.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<(usize, Vec<(u64, u32)>)> {
        let mut ready = std::mem::take(&mut self.inner().ready);
        ready.clear();
        let waited = if timeout_s == 0.0 {
            self.ready(timeout_s, &mut ready)
        } else {
            py.detach(|| self.ready(timeout_s, &mut ready))
        };
        waited.map_err(system_error)?;
        let others = ready.iter().filter(|(token, _)| *token < FIRST_TOKEN).map(|(token, flags)| {
            let reads = if flags.difference(epoll::EventFlags::OUT).is_empty() { 0 } else { OTHER_READS };
            let writes = if flags.difference(epoll::EventFlags::IN).is_empty() { 0 } else { OTHER_WRITES };
            (*token, reads | writes)
        });
        let others: Vec<_> = others.collect();
        ready.retain(|(token, _)| *token >= FIRST_TOKEN);
        let count = ready.len();
        self.inner().ready = ready;
        Ok((count, others))
    }

    /// Read what has arrived and serve what the backend can, of the sockets that `wait` has found: (puts, gets, held, events).
    ///
    /// `puts` are a burst's; `gets` and `held` are its, too, as lists of (connection, ...); an event is (transport, kind,
    /// what). Replies wait for `send_replies`. Without a backend everything goes to the transports.
    #[pyo3(signature = (backend, now_ms, *, takes_sends, takes_pulls))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        backend: Option<&Backend>,
        now_ms: i64,
        takes_sends: bool,
        takes_pulls: bool,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let ready = std::mem::take(&mut self.inner().ready);
        let mut turn = Turn {
            py,
            gets: PyList::empty(py),
            held: PyList::empty(py),
            events: PyList::empty(py),
            outgoing: Vec::new(),
        };
        let mut puts = PyList::empty(py);
        let (mut buffer, replies) = {
            let mut inner = self.inner();
            (std::mem::take(&mut inner.buffer), std::mem::take(&mut inner.replies))
        };
        buffer.resize(READ_BYTES, 0);
        if let Some(mut state) = backend.and_then(Backend::state) {
            let gates = Gates { sends: takes_sends, pulls: takes_pulls };
            let mut burst = state.shared.begin(py, b"", now_ms, gates)?;
            let scratch = std::mem::replace(&mut burst.replies, replies);
            let mut outcome = self.connections(&mut turn, &ready, &mut buffer, Some((&mut state, &mut burst)));
            match state.end(&mut burst) {
                Ok(stored) => puts = stored,
                // Nothing of this burst may be answered: what it stored may not be where the store looks for it.
                Err(fault) => outcome = outcome.and_then(|()| self.fail(&mut turn, &fault)),
            }
            state.shared.keep(scratch);
            drop(state);
            let mut inner = self.inner();
            (inner.buffer, inner.replies, inner.outgoing) = (buffer, burst.replies, std::mem::take(&mut turn.outgoing));
            drop(inner);
            outcome?;
        } else {
            let outcome = self.connections(&mut turn, &ready, &mut buffer, None);
            let mut inner = self.inner();
            (inner.buffer, inner.replies) = (buffer, replies);
            drop(inner);
            outcome?;
        }
        self.inner().ready = ready;
        (puts, turn.gets, turn.held, turn.events).into_pyobject(py)
    }

    /// Send the replies of the last `receive`. Returns what peers did not take: (transport, bytes), or (transport, error
    /// number).
    fn send_replies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let unsent = PyList::empty(py);
        let (mut replies, outgoing) = {
            let mut inner = self.inner();
            (std::mem::take(&mut inner.replies), std::mem::take(&mut inner.outgoing))
        };
        for (token, start, end) in outgoing {
            let data = &replies[start..end];
            let inner = self.inner();
            let Some(socket) = inner.sockets.get(&token) else { continue };
            let sent = if socket.writes { Ok(0) } else { send_some(socket, data) };
            if sent == Ok(data.len()) {
                continue;
            }
            let owner = socket.owner.clone_ref(py);
            drop(inner);
            match sent {
                Ok(size) => unsent.append((owner, PyBytes::new(py, &data[size..])))?,
                Err(error) => unsent.append((owner, error.raw_os_error()))?,
            }
        }
        replies.clear();
        replies.shrink_to(REPLIES_BYTES_KEPT);
        self.inner().replies = replies;
        Ok(unsent)
    }
}

/// What one `receive` has found out.
struct Turn<'py> {
    py: Python<'py>,
    gets: Bound<'py, PyList>,
    held: Bound<'py, PyList>,
    events: Bound<'py, PyList>,
    outgoing: Vec<(u64, usize, usize)>,
}

type FastPath<'l, 'py> = (&'l mut State, &'l mut Burst<'py>);

impl Sockets {
    fn ready(&self, timeout_s: f64, ready: &mut Vec<Ready>) -> Result<(), Errno> {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; READY_MAX];
        // Whole milliseconds, never too short, as Python's selectors wait.
        let millis = (timeout_s.min(86_400.0) * 1e3).ceil() as i64;
        let timeout = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        let count = match epoll::wait(&self.epoll, &mut events[..], (timeout_s >= 0.0).then_some(&timeout)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error),
        };
        ready.extend(events[..count].iter().map(|event| (event.data.u64(), event.flags)));
        Ok(())
    }

    /// Read from each ready connection, and serve it.
    fn connections(
        &self,
        turn: &mut Turn<'_>,
        ready: &[Ready],
        buffer: &mut [u8],
        mut fast_path: Option<FastPath<'_, '_>>,
    ) -> PyResult<()> {
        let mut read_bytes = 0;
        for (token, flags) in ready.iter().copied() {
            if read_bytes > TURN_BYTES_MAX {
                break;
            }
            if flags.contains(epoll::EventFlags::OUT) {
                self.tell(turn, token, WRITABLE, turn.py.None())?;
            }
            if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                continue;
            }
            let Some((read, served)) = self.read(turn.py, token, buffer) else { continue };
            match read {
                Ok(0) => self.tell(turn, token, END, turn.py.None())?,
                Ok(size) => {
                    let data = &buffer[..size];
                    read_bytes += size;
                    let goes_on = match (fast_path.as_mut(), served) {
                        (Some((state, burst)), Some(served)) => self.serve_read(turn, token, data, state, burst, served)?,
                        _ => self.keep(turn, token, data, Rest::ForTransport(0)).map(|()| true)?,
                    };
                    if !goes_on {
                        break;
                    }
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    let number = error.raw_os_error().into_pyobject(turn.py)?.into_any().unbind();
                    self.tell(turn, token, BROKEN, number)?;
                }
            }
        }
        Ok(())
    }

    /// Serve one read; false when the other connections have to wait for the next turn.
    fn serve_read(
        &self,
        turn: &mut Turn<'_>,
        token: u64,
        data: &[u8],
        state: &mut State,
        burst: &mut Burst<'_>,
        served: Served,
    ) -> PyResult<bool> {
        let (py, connection) = (turn.py, served.connection);
        connection.setattr(py, intern!(py, "touched"), true)?;
        burst.writing.born_host = served.born_host;
        burst.pulled_bytes = 0;
        let start = burst.replies.len();
        let (used, slow, fault) = state.frames(burst, data, 0);
        if let Some(fault) = fault {
            burst.replies.truncate(start);
            burst.held.clear();
            self.tell(turn, token, FAULT, fault.into_value(py).into_any())?;
            return Ok(false);
        }
        if burst.replies.len() > start {
            turn.outgoing.push((token, start, burst.replies.len()));
        }
        if !burst.held.is_empty() {
            turn.held.append((&connection, PyBytes::new(py, &burst.held)))?;
            burst.held.clear();
        }
        if let Some(pulled) = burst.pulled.take() {
            turn.gets.append((&connection, pulled))?;
        }
        let is_full = burst.pulled_bytes >= REPLY_BYTES_MAX;
        let rest = if slow || is_full { Rest::ForTransport(used) } else { rest_of(data, used) };
        self.keep(turn, token, data, rest)?;
        Ok(burst.replies.len() <= REPLIES_BYTES_MAX)
    }

    /// Fail every connection that has been served: its replies must not leave.
    fn fail(&self, turn: &mut Turn<'_>, fault: &PyErr) -> PyResult<()> {
        turn.held.call_method0("clear")?;
        for (token, _, _) in std::mem::take(&mut turn.outgoing) {
            self.tell(turn, token, FAULT, fault.clone_ref(turn.py).into_value(turn.py).into_any())?;
        }
        Ok(())
    }

    /// Put what was kept and what has arrived into `buffer`; None for a socket that is gone or does not read.
    fn read(
        &self,
        py: Python<'_>,
        token: u64,
        buffer: &mut [u8],
    ) -> Option<(Result<usize, Errno>, Option<Served>)> {
        let mut inner = self.inner();
        let socket = inner.sockets.get_mut(&token).filter(|socket| socket.reads)?;
        let kept = socket.tail.len();
        buffer[..kept].copy_from_slice(&socket.tail);
        let read = recv(&socket.descriptor, &mut buffer[kept..], RecvFlags::DONTWAIT).map(|(size, _)| size);
        let served = socket.served.as_ref().map(|served| Served {
            connection: served.connection.clone_ref(py),
            born_host: served.born_host.clone(),
        });
        if !matches!(read, Ok(1..)) {
            return Some((read, served)); // an end behind half a frame is an end
        }
        socket.tail = Vec::new();
        Some((read.map(|size| kept + size), served))
    }

    /// Keep the beginning of a frame, or give to the transport what is its business.
    fn keep(&self, turn: &mut Turn<'_>, token: u64, data: &[u8], rest: Rest) -> PyResult<()> {
        match rest {
            Rest::Nothing => Ok(()),
            Rest::Tail(from) => {
                if let Some(socket) = self.inner().sockets.get_mut(&token) {
                    socket.tail.extend_from_slice(&data[from..]);
                }
                Ok(())
            }
            Rest::ForTransport(from) => {
                let served = self.inner().sockets.get_mut(&token).and_then(|socket| socket.served.take());
                drop(served);
                self.tell(turn, token, DATA, PyBytes::new(turn.py, &data[from..]).into_any().unbind())
            }
        }
    }

    fn tell(&self, turn: &Turn<'_>, token: u64, kind: u8, what: Py<PyAny>) -> PyResult<()> {
        let owner = self.inner().sockets.get(&token).map(|socket| socket.owner.clone_ref(turn.py));
        owner.map_or(Ok(()), |owner| turn.events.append((owner, kind, what)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Let the epoll know what is waited for: nothing at all when that is nothing, for it would still tell of ends.
    fn watch_socket(&self, socket: &mut Socket, token: u64) -> PyResult<()> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, socket.reads);
        flags.set(epoll::EventFlags::OUT, socket.writes);
        let data = epoll::EventData::new_u64(token);
        let done = match (socket.is_watched, flags.is_empty()) {
            (false, true) => Ok(()),
            (false, false) => epoll::add(&self.epoll, &socket.descriptor, data, flags),
            (true, true) => epoll::delete(&self.epoll, &socket.descriptor),
            (true, false) => epoll::modify(&self.epoll, &socket.descriptor, data, flags),
        };
        done.map_err(system_error)?;
        socket.is_watched = !flags.is_empty();
        Ok(())
    }
}

/// What to do with the bytes behind the last frame that was served.
fn rest_of(data: &[u8], used: usize) -> Rest {
    let rest = &data[used..];
    if rest.is_empty() {
        return Rest::Nothing;
    }
    let Some(words) = rest.first_chunk::<8>() else { return Rest::Tail(used) };
    let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let header_bytes = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
    // Lies and what is too long are for the transport's decoder, which knows the errors.
    if header_bytes + 4 > length || length > TAIL_BYTES_MAX { Rest::ForTransport(used) } else { Rest::Tail(used) }
}

fn send_some(socket: &Socket, data: &[u8]) -> Result<usize, Errno> {
    match send(&socket.descriptor, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}

#[allow(unsafe_code)]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the caller gives an open descriptor away that nobody else closes (socket.detach()).
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

#[allow(unsafe_code)]
fn borrow<'a>(descriptor: RawFd) -> BorrowedFd<'a> {
    // SAFETY: used for one call of epoll_ctl, which refuses a number that is no open descriptor.
    unsafe { BorrowedFd::borrow_raw(descriptor) }
}

fn system_error(error: Errno) -> PyErr {
    PyOSError::new_err((error.raw_os_error(), std::io::Error::from(error).to_string()))
}

fn unknown() -> PyErr {
    PyKeyError::new_err("no such socket: it was removed")
}
