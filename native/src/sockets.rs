//! The sockets of a broker: passes the bytes of a read to the fast path and its replies to a write, without a Python
//! object for either.
//!
//! One epoll holds all connections, and other descriptors when it is the event loop's own (native_loop.py); on any
//! other loop its descriptor is watched. `run` waits, reads, serves and sends, turn after turn, without the
//! interpreter. Frames that the fast path cannot serve, the first bytes of a connection, ends and errors go to the
//! connection's transport (aerobee/remoting/direct.py) as events; so do all bytes of a connection before the transport
//! has called `serve`. All turns of a run share one burst: its numbers are read and written into Python's objects once.
//!
//! Invariant: a message's bytes are in the log's and the queue's files before its reply is sent. Whatever Python code
//! of the event loop runs next sees the numbers that belong to them: a run writes them before it returns. Replies are
//! never sent ahead of bytes that still wait for the peer. The lock is never held while Python runs, for a transport
//! may be called from there.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pyo3::exceptions::{PyKeyError, PyOSError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use rustix::event::epoll;
use rustix::event::Timespec;
use rustix::io::Errno;
use rustix::net::{recv, send, RecvFlags, SendFlags};

use crate::constants::{ACK_LEVELS, HEADER_BYTES_MAX, REPLY_BYTES_MAX};
use crate::backend::{Backend, State};
use crate::guard::Asked;
use crate::outcome::note_failed_callback;
use crate::results::{self, Pulled, SocketTurns};
use crate::shared::{Burst, Gates};

const READ_BYTES: usize = 256 * 1024; // of one connection at a time
const TAIL_BYTES_MAX: usize = 128 * 1024; // a longer frame that is not whole is collected by the transport
const REPLIES_BYTES_MAX: usize = 4 << 20; // of all connections; the others wait for the next turn
const TURN_BYTES_MAX: usize = 2 << 20; // read from all connections; likewise
const TURN_MAX: Duration = Duration::from_millis(10); // likewise: timers wait for a turn's end
const LOOKS_AT_CLOCK_EVERY: usize = 8; // connections of a turn, and after each long read
const READY_MAX: usize = 256;
const REPLIES_BYTES_KEPT: usize = 1 << 18;
const WAIT_S_MAX: f64 = 86_400.0;
// deferred in memory: the maximum that recovery must rebuild after a crash of this process
const INDEX_ENTRIES_MAX: usize = 512;
const PULLED_MAX: usize = 1024; // pull results that Python has not recorded yet
const PULLED_LOOKED_AT_MAX: usize = 64; // newest results searched for one of the same queue
const FIRST_TOKEN: u64 = 1 << 32; // smaller tokens are descriptors that the event loop reads
// The masks of Python's selectors.
const OTHER_READS: u32 = 1;
const OTHER_WRITES: u32 = 2;

// Kinds of events: what happened to a transport.
const DATA: u8 = 0; // bytes that it has to serve
const END: u8 = 1; // the peer has closed its half
const BROKEN: u8 = 2; // a system error, by number
const WRITABLE: u8 = 3; // bytes can be sent again
const FAULT: u8 = 4; // an exception of this module

struct Socket {
    descriptor: OwnedFd,
    owner: Py<PyAny>,
    served: Option<Arc<Served>>, // None: its bytes go to the transport
    last_run: u64,               // the run that has last read from it
    tail: Vec<u8>,          // the beginning of a frame that the fast path will serve
    reads: bool,
    writes: bool, // the transport has bytes that wait for the peer
    is_watched: bool,
}

/// The fast path's state of a connection.
struct Served {
    connection: Py<PyAny>,
    born_host: Vec<u8>,
    asked: Asked,
}

#[derive(Default)]
struct Inner {
    sockets: HashMap<u64, Socket>,
    last_token: u64,
    ready: Vec<Ready>, // events of the last wait
    next: u64,         // position at which the last iteration ended: the next one starts there, otherwise later connections would never be read
    buffer: Vec<u8>,
    run_count: u64,
}

type Ready = (u64, epoll::EventFlags);

#[pyclass(frozen, module = "aerobee_native")]
pub struct Sockets {
    epoll: OwnedFd,
    inner: Mutex<Inner>,
}

/// The remainder of one read after the fast path, or all of it.
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

    /// Take over a connected, non-blocking socket; returns its token. `remove` closes it.
    fn add(&self, descriptor: RawFd, owner: Py<PyAny>) -> PyResult<u64> {
        let descriptor = own(descriptor);
        let mut inner = self.inner();
        inner.last_token += 1;
        let token = FIRST_TOKEN + inner.last_token;
        let mut socket =
            Socket {
                descriptor,
                owner,
                served: None,
                last_run: 0,
                tail: Vec::new(),
                reads: true,
                writes: false,
                is_watched: false,
            };
        self.watch_socket(&mut socket, token)?;
        inner.sockets.insert(token, socket);
        Ok(token)
    }

    /// Close a socket and forget it.
    fn remove(&self, token: u64) {
        let socket = self.inner().sockets.remove(&token);
        drop(socket); // may run Python: not under the lock
    }

    /// Set the events that a transport waits for. While it waits to write, nothing is sent past it.
    fn watch(&self, token: u64, reads: bool, writes: bool) -> PyResult<()> {
        let mut inner = self.inner();
        let socket = inner.sockets.get_mut(&token).ok_or_else(unknown)?;
        (socket.reads, socket.writes) = (reads, writes);
        self.watch_socket(socket, token)
    }

    /// From now on the fast path serves what arrives, until bytes go to the transport again. `host` is whom its guard asks.
    #[pyo3(signature = (token, connection, born_host, host=None))]
    fn serve(&self, token: u64, connection: Py<PyAny>, born_host: Vec<u8>, host: Option<&str>) -> PyResult<()> {
        let replaced = {
            let mut inner = self.inner();
            let socket = inner.sockets.get_mut(&token).ok_or_else(unknown)?;
            socket.served.replace(Arc::new(Served { connection, born_host, asked: Asked::of(host) }))
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

    /// Have `wait` report a descriptor that Python owns; mask 0: no longer.
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

    /// Wait until something is ready, below 0 seconds for ever: how many sockets are, and (descriptor, mask) of the others.
    /// Other threads run meanwhile.
    fn wait(&self, py: Python<'_>, timeout_s: f64) -> PyResult<(usize, Vec<(u64, u32)>)> {
        let mut ready = std::mem::take(&mut self.inner().ready);
        let others = self.find_ready(py, timeout_s, &mut ready);
        let count = ready.len();
        self.inner().ready = ready;
        Ok((count, others?))
    }

    /// Run iterations of: wait, read, serve the frames that the backend can serve, send. The run ends when Python has
    /// work to do, when `timeout_s` has passed (below 0: never), after `turn_count_max` iterations, or `linger_s` after
    /// the first iteration (below 0: no such limit). native_loop.py describes the result.
    ///
    /// The numbers of a burst stay in Rust from one iteration to the next. No Python code reads them meanwhile, because
    /// any work for the event loop ends the run (`loop_ready`: its callbacks to run; `loop_timers`: its timers, whose
    /// number changes with each new one). Other threads run while this one waits. Without a backend all bytes go to the
    /// transports. `now_ms` returns the time, None: the system's.
    #[pyo3(signature = (backend, timeout_s, *, turn_count_max, takes_sends, takes_pulls, now_ms, loop_ready, loop_timers, linger_s=-1.0))]
    #[allow(clippy::too_many_arguments)]
    fn run<'py>(
        &self,
        py: Python<'py>,
        backend: Option<&Backend>,
        timeout_s: f64,
        turn_count_max: usize,
        takes_sends: bool,
        takes_pulls: bool,
        now_ms: Option<Bound<'py, PyAny>>,
        loop_ready: Option<Bound<'py, PyAny>>,
        loop_timers: Option<Bound<'py, PyList>>,
        linger_s: f64,
    ) -> PyResult<Py<SocketTurns>> {
        let number = {
            let mut inner = self.inner();
            inner.run_count += 1;
            inner.run_count
        };
        let mut run = Run::new(py, number, now_ms, loop_ready, loop_timers);
        let deadline = (timeout_s >= 0.0).then(|| Instant::now() + Duration::from_secs_f64(timeout_s.min(WAIT_S_MAX)));
        let mut state = backend.and_then(|backend| backend.state(py));
        let mut burst = match state.as_mut() {
            Some(state) => {
                let gates = Gates { sends: takes_sends, pulls: takes_pulls };
                Some(state.shared.begin(py, b"", run.last_ms, gates)?)
            }
            None => None,
        };
        if let (Some(state), Some(burst)) = (state.as_mut(), burst.as_mut()) {
            burst.writing.now_ms = state.shared.appender.last_store_timestamp(py)?;
            state.shared.appender.has_called = false;
        }
        let mut ready = std::mem::take(&mut self.inner().ready);
        let mut buffer = std::mem::take(&mut self.inner().buffer);
        buffer.resize(READ_BYTES, 0);
        let fast_path = state.as_mut().zip(burst.as_mut()).map(|(state, burst)| (&mut **state, burst));
        let bounds = Bounds { deadline, turn_count_max, linger: (linger_s >= 0.0).then(|| Duration::from_secs_f64(linger_s.min(WAIT_S_MAX))) };
        let outcome = self.turns(&mut run, bounds, &mut ready, &mut buffer, fast_path);
        let mut fault = py.None();
        let mut stored_count = 0;
        if let (Some(state), Some(mut burst)) = (state.as_mut(), burst) {
            match state.end(&mut burst) {
                Ok(stored) => stored_count = stored,
                Err(error) => fault = error.into_value(py).into_any(),
            }
            state.shared.keep(burst.replies);
        }
        drop(state);
        {
            let mut inner = self.inner();
            (inner.ready, inner.buffer) = (ready, buffer);
        }
        let pulled = PyList::empty(py);
        for (_, connection, result) in &run.pulled {
            pulled.append((connection, [result.result(py)?]))?;
        }
        if let Err(error) = outcome {
            // The results so far are reported nevertheless: bytes were read and replies were sent.
            for (token, ..) in std::mem::take(&mut run.outgoing) {
                self.tell(&run, token, FAULT, error.clone_ref(py).into_value(py).into_any())?;
            }
            note_failed_callback(py, error, "a turn of connections")?;
        }
        let Run { others, turn_count, held, events, unsent, .. } = run;
        let turns = SocketTurns {
            others: PyList::new(py, others)?.unbind(),
            turn_count: results::int(py, turn_count),
            stored_count: results::int(py, stored_count),
            pulled: pulled.unbind(),
            held: held.unbind(),
            events: events.unbind(),
            unsent: unsent.unbind(),
            fault,
        };
        Py::new(py, turns)
    }
}

/// When a `run` ends that nothing else has ended. `linger` counts from the run's first iteration, because a replica
/// waits for the stored bytes.
struct Bounds {
    deadline: Option<Instant>,
    turn_count_max: usize,
    linger: Option<Duration>,
}

/// Results and parameters of one `run`.
struct Run<'py> {
    py: Python<'py>,
    now_ms: Option<Bound<'py, PyAny>>,
    loop_ready: Option<Bound<'py, PyAny>>,
    loop_timers: Option<Bound<'py, PyList>>,
    timer_count: usize,
    last_ms: i64,
    turn_count: usize,
    others: Vec<(u64, u32)>,
    number: u64,
    pulled: Vec<(u64, Py<PyAny>, Pulled)>, // token, connection
    found_count: u64, // pulls that found something
    held: Bound<'py, PyList>,
    events: Bound<'py, PyList>,
    unsent: Bound<'py, PyList>,
    outgoing: Vec<(u64, usize, usize)>, // token, and where its replies begin and end
    is_over: bool,
}

impl<'py> Run<'py> {
    fn new(
        py: Python<'py>,
        number: u64,
        now_ms: Option<Bound<'py, PyAny>>,
        loop_ready: Option<Bound<'py, PyAny>>,
        loop_timers: Option<Bound<'py, PyList>>,
    ) -> Self {
        Self {
            py,
            now_ms,
            timer_count: loop_timers.as_ref().map_or(0, |timers| timers.len()),
            loop_ready,
            loop_timers,
            last_ms: 0,
            turn_count: 0,
            others: Vec::new(),
            number,
            pulled: Vec::new(),
            found_count: 0,
            held: PyList::empty(py),
            events: PyList::empty(py),
            unsent: PyList::empty(py),
            outgoing: Vec::new(),
            is_over: false,
        }
    }

    /// The wall clock, ms.
    fn now_ms(&self) -> PyResult<i64> {
        match &self.now_ms {
            Some(now_ms) => now_ms.call0()?.extract(),
            None => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Ok(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
            }
        }
    }

    /// Whether something waits for Python.
    fn has_work(&self) -> PyResult<bool> {
        let is_ready = match &self.loop_ready {
            Some(ready) => !ready.is_empty()?,
            None => false,
        };
        let timer_count = self.loop_timers.as_ref().map_or(0, |timers| timers.len());
        Ok(is_ready
            || timer_count != self.timer_count
            || !self.others.is_empty()
            || !self.held.is_empty()
            || !self.events.is_empty()
            || !self.unsent.is_empty()
            || self.pulled.len() >= PULLED_MAX
            || self.is_over)
    }

    /// Record a connection's pull: merge it with its previous pull of the same queue, unless another connection pulled
    /// that queue since.
    fn take_pulled(&mut self, token: u64, connection: &Py<PyAny>, pulled: &mut Vec<Pulled>) {
        for result in pulled.drain(..) {
            self.found_count += u64::from(result.held.is_none());
            self.is_over |= result.held.is_some();
            let recent = self.pulled.iter_mut().rev().take(PULLED_LOOKED_AT_MAX);
            let before = { recent }.find(|(_, _, before)| before.queue_id == result.queue_id);
            if !before.is_some_and(|(owner, _, before)| *owner == token && before.take_in(&result)) {
                self.pulled.push((token, connection.clone_ref(self.py), result));
            }
        }
    }
}

type FastPath<'l, 'py> = (&'l mut State, &'l mut Burst<'py>);
type Read = (Result<usize, Errno>, Option<Arc<Served>>);

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

    /// Iterate until work is left for Python.
    fn turns<'py>(
        &self,
        run: &mut Run<'py>,
        bounds: Bounds,
        ready: &mut Vec<Ready>,
        buffer: &mut [u8],
        mut fast_path: Option<FastPath<'_, 'py>>,
    ) -> PyResult<()> {
        let py = run.py;
        let Bounds { mut deadline, turn_count_max, linger } = bounds;
        loop {
            let timeout_s = deadline.map_or(-1.0, |deadline| deadline.saturating_duration_since(Instant::now()).as_secs_f64());
            run.others = self.find_ready(py, timeout_s, ready)?;
            if ready.is_empty() {
                return Ok(()); // the time has passed, a signal has come, or others have something
            }
            let began = Instant::now();
            run.turn_count += 1;
            if let (1, Some(linger)) = (run.turn_count, linger) {
                deadline = Some(deadline.map_or(began + linger, |deadline| deadline.min(began + linger)));
            }
            if let Some((state, burst)) = fast_path.as_mut() {
                burst.writing.now_ms = burst.writing.now_ms.max(run.now_ms()?);
                burst.gates.sends &= state.shared.may_append();
                let requests = state.shared.appender.topics.request_count;
                let found = run.found_count;
                self.connections(run, ready, buffer, Some((state, burst)))?;
                self.send_replies(run, &mut burst.replies)?;
                let (took, stored) = (began.elapsed(), state.shared.appender.topics.request_count - requests);
                let counted = state.put_steps.add(py, took, stored);
                counted.and(state.get_steps.add(py, took, run.found_count - found))?;
                state.requests.took(took);
                run.is_over |= state.shared.appender.has_called
                    || state.shared.appender.unwritten_entry_count() >= INDEX_ENTRIES_MAX;
            } else {
                self.connections(run, ready, buffer, None)?;
            }
            if run.has_work()? || run.turn_count >= turn_count_max || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Ok(());
            }
        }
    }

    /// Wait until something is ready; the sockets go to `ready`, the others are returned.
    fn find_ready(&self, py: Python<'_>, timeout_s: f64, ready: &mut Vec<Ready>) -> PyResult<Vec<(u64, u32)>> {
        ready.clear();
        let waited =
            if timeout_s == 0.0 { self.ready(timeout_s, ready) } else { py.detach(|| self.ready(timeout_s, ready)) };
        waited.map_err(system_error)?;
        let others = ready.iter().filter(|(token, _)| *token < FIRST_TOKEN).map(|(token, flags)| {
            let reads = if flags.difference(epoll::EventFlags::OUT).is_empty() { 0 } else { OTHER_READS };
            let writes = if flags.difference(epoll::EventFlags::IN).is_empty() { 0 } else { OTHER_WRITES };
            (*token, reads | writes)
        });
        let others = others.collect();
        ready.retain(|(token, _)| *token >= FIRST_TOKEN);
        Ok(others)
    }

    /// Send the replies of a turn; what peers do not take is kept for their transports.
    fn send_replies(&self, run: &mut Run<'_>, replies: &mut Vec<u8>) -> PyResult<()> {
        for (token, start, end) in run.outgoing.drain(..) {
            let data = &replies[start..end];
            let inner = self.inner();
            let Some(socket) = inner.sockets.get(&token) else { continue };
            let sent = if socket.writes { Ok(0) } else { send_some(socket, data) };
            if sent == Ok(data.len()) {
                continue;
            }
            let owner = socket.owner.clone_ref(run.py);
            drop(inner);
            match sent {
                Ok(size) => run.unsent.append((owner, PyBytes::new(run.py, &data[size..])))?,
                Err(error) => run.unsent.append((owner, error.raw_os_error()))?,
            }
        }
        replies.clear();
        replies.shrink_to(REPLIES_BYTES_KEPT);
        Ok(())
    }

    /// Read from each ready connection, and serve it.
    fn connections(
        &self,
        run: &mut Run<'_>,
        ready: &[Ready],
        buffer: &mut [u8],
        mut fast_path: Option<FastPath<'_, '_>>,
    ) -> PyResult<()> {
        let (began, mut read_bytes) = (Instant::now(), 0);
        let next = std::mem::take(&mut self.inner().next);
        let first = if next == 0 { 0 } else { ready.iter().position(|(token, _)| *token == next).unwrap_or(0) };
        let (last, begin) = ready.split_at(first);
        let (mut looks_at_clock, mut is_full) = (false, false);
        for (number, (token, flags)) in begin.iter().chain(last).copied().enumerate() {
            is_full |= read_bytes > TURN_BYTES_MAX || (looks_at_clock && began.elapsed() > TURN_MAX);
            if is_full {
                self.inner().next = token;
                break;
            }
            looks_at_clock = number % LOOKS_AT_CLOCK_EVERY == LOOKS_AT_CLOCK_EVERY - 1;
            if flags.contains(epoll::EventFlags::OUT) {
                self.tell(run, token, WRITABLE, run.py.None())?;
            }
            if !flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ERR) {
                continue;
            }
            let Some((read, served)) = self.read(run, token, buffer)? else { continue };
            match read {
                Ok(0) => self.tell(run, token, END, run.py.None())?,
                Ok(size) => {
                    let data = &buffer[..size];
                    read_bytes += size;
                    looks_at_clock |= size > READ_BYTES / 4;
                    let goes_on = match (fast_path.as_mut(), served) {
                        (Some((state, burst)), Some(served)) => self.serve_read(run, token, data, state, burst, &served)?,
                        _ => self.keep(run, token, data, Rest::ForTransport(0)).map(|()| true)?,
                    };
                    is_full |= !goes_on;
                }
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => {
                    let number = error.raw_os_error().into_pyobject(run.py)?.into_any().unbind();
                    self.tell(run, token, BROKEN, number)?;
                }
            }
        }
        Ok(())
    }

    /// Serve one read; false when the other connections have to wait for the next turn.
    fn serve_read(
        &self,
        run: &mut Run<'_>,
        token: u64,
        data: &[u8],
        state: &mut State,
        burst: &mut Burst<'_>,
        served: &Served,
    ) -> PyResult<bool> {
        let py = run.py;
        burst.writing.born_host.clear();
        burst.writing.born_host.extend_from_slice(&served.born_host);
        burst.asked = served.asked.clone();
        burst.pulled_bytes = 0;
        let start = burst.replies.len();
        let (used, slow, fault) = state.frames(burst, data, 0);
        if let Some(fault) = fault {
            burst.replies.truncate(start);
            burst.held.clear();
            burst.deferred_answers.take();
            burst.leveled.clear();
            burst.pulled.clear();
            self.tell(run, token, FAULT, fault.into_value(py).into_any())?;
            return Ok(false);
        }
        if burst.replies.len() > start {
            run.outgoing.push((token, start, burst.replies.len()));
        }
        if !burst.held.is_empty() {
            let answers = results::answers(py, &mut burst.deferred_answers)?;
            run.held.append((&served.connection, PyBytes::new(py, &burst.held), answers, py.None()))?;
            burst.held.clear();
        }
        for mut each in burst.leveled.drain(..) {
            let (frames, answers) = (PyBytes::new(py, &each.frames), results::answers(py, &mut each.answers)?);
            run.held.append((&served.connection, frames, answers, ACK_LEVELS[each.level]))?;
        }
        run.take_pulled(token, &served.connection, &mut burst.pulled);
        let is_full = burst.pulled_bytes >= REPLY_BYTES_MAX;
        let rest = if slow || is_full { Rest::ForTransport(used) } else { rest_of(data, used) };
        self.keep(run, token, data, rest)?;
        Ok(burst.replies.len() <= REPLIES_BYTES_MAX)
    }

    /// Copy the kept and the received bytes into `buffer`; None for a socket that is closed or does not read.
    fn read(&self, run: &Run<'_>, token: u64, buffer: &mut [u8]) -> PyResult<Option<Read>> {
        let mut inner = self.inner();
        let Some(socket) = inner.sockets.get_mut(&token).filter(|socket| socket.reads) else { return Ok(None) };
        let kept = socket.tail.len();
        buffer[..kept].copy_from_slice(&socket.tail);
        let read = recv(&socket.descriptor, &mut buffer[kept..], RecvFlags::DONTWAIT).map(|(size, _)| size);
        let served = socket.served.clone();
        let is_first = std::mem::replace(&mut socket.last_run, run.number) != run.number;
        let has_read = matches!(read, Ok(1..));
        if has_read {
            socket.tail.clear();
        }
        drop(inner);
        if let Some(served) = served.as_ref().filter(|_| is_first) {
            served.connection.setattr(run.py, intern!(run.py, "touched"), true)?;
        }
        // An end behind half a frame is an end.
        Ok(Some((if has_read { read.map(|size| kept + size) } else { read }, served)))
    }

    /// Keep the beginning of an incomplete frame, or pass the bytes to the transport.
    fn keep(&self, run: &mut Run<'_>, token: u64, data: &[u8], rest: Rest) -> PyResult<()> {
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
                self.tell(run, token, DATA, PyBytes::new(run.py, &data[from..]).into_any().unbind())
            }
        }
    }

    fn tell(&self, run: &Run<'_>, token: u64, kind: u8, what: Py<PyAny>) -> PyResult<()> {
        let owner = self.inner().sockets.get(&token).map(|socket| socket.owner.clone_ref(run.py));
        owner.map_or(Ok(()), |owner| run.events.append((owner, kind, what)))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Register the socket's events with the epoll. A socket without any is removed, because the epoll would still
    /// report its end.
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

/// Handling of the bytes after the last served frame.
fn rest_of(data: &[u8], used: usize) -> Rest {
    let rest = &data[used..];
    if rest.is_empty() {
        return Rest::Nothing;
    }
    let Some(words) = rest.first_chunk::<8>() else { return Rest::Tail(used) };
    let length = u32::from_be_bytes([words[0], words[1], words[2], words[3]]) as usize;
    let header_bytes = u32::from_be_bytes([0, words[5], words[6], words[7]]) as usize;
    // Frames with wrong or excessive lengths go to the transport's decoder, which raises the errors.
    let is_long = header_bytes > HEADER_BYTES_MAX || length > TAIL_BYTES_MAX;
    if header_bytes + 4 > length || is_long { Rest::ForTransport(used) } else { Rest::Tail(used) }
}

fn send_some(socket: &Socket, data: &[u8]) -> Result<usize, Errno> {
    match send(&socket.descriptor, data, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        sent => sent,
    }
}

#[allow(unsafe_code)]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: the caller gives an open descriptor away that no other code closes (socket.detach()).
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
