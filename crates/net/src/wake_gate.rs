//! Skips polling a future whose waker has not fired.
//!
//! Each chunk of a stream polls the body, the sockets on both sides, the watchdog of the connection and the shutdown
//! signal, most of which have nothing new. Polling a socket or a timer that is still pending costs hundreds of instructions.
//! Through a gate it costs a dozen: the gate puts its own waker before the task's and polls only after that one fired.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A waker of our own in front of the task's.
pub struct WakeGate {
    shared: Arc<GateWaker>,
    waker: Waker,
    /// A copy of `shared.task`, compared without taking its lock.
    task: Waker,
}

struct GateWaker {
    woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for GateWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

impl Default for WakeGate {
    /// Open from the start: a future must be polled once before it can wake anything.
    fn default() -> WakeGate {
        let shared = GateWaker { woken: AtomicBool::new(true), task: Mutex::new(Waker::noop().clone()) };
        let shared = Arc::new(shared);
        WakeGate { waker: Waker::from(shared.clone()), shared, task: Waker::noop().clone() }
    }
}

impl WakeGate {
    /// The context to poll with, if the waker has fired since the last call.
    #[inline]
    pub fn pass(&mut self, cx: &Context<'_>) -> Option<Context<'_>> {
        // Store the task first: a wake between this and the check then reaches it.
        if !self.task.will_wake(cx.waker()) {
            self.task.clone_from(cx.waker());
            self.shared.task.lock().clone_from(cx.waker());
            self.open();
        }
        // Load before the swap: the swap is the expensive part, and mostly the flag is not set.
        let woken =
            self.shared.woken.load(Ordering::Relaxed) && self.shared.woken.swap(false, Ordering::Acquire);
        woken.then(|| Context::from_waker(&self.waker))
    }

    /// Lets the next poll through although the waker has not fired.
    pub fn open(&self) {
        self.shared.woken.store(true, Ordering::Release);
    }
}

/// A future behind a gate.
pub struct Gated<F> {
    gate: WakeGate,
    future: Pin<Box<F>>,
}

impl<F: Future> Gated<F> {
    pub fn new(future: F) -> Gated<F> {
        Gated { gate: WakeGate::default(), future: Box::pin(future) }
    }
}

impl<F: Future> Future for Gated<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Gated { gate, future } = &mut *self;
        match gate.pass(cx) {
            Some(mut cx) => future.as_mut().poll(&mut cx),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;

    #[derive(Default)]
    struct WakeCount(AtomicU32);

    impl Wake for WakeCount {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A future that counts its polls and stores its waker.
    fn counting(polls: &AtomicU32, stored: &Mutex<Option<Waker>>) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            *stored.lock() = Some(cx.waker().clone());
            match polls.fetch_add(1, Ordering::Relaxed) {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
    }

    #[test]
    fn a_future_is_polled_only_after_its_waker_fired_and_the_task_is_woken() {
        let (polls, stored) = (AtomicU32::new(0), Mutex::new(None));
        let wakes = Arc::new(WakeCount::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut gated = Gated::new(counting(&polls, &stored));
        for _ in 0..5 {
            assert!(Pin::new(&mut gated).poll(&mut cx).is_pending());
        }
        assert_eq!((polls.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (1, 0));
        stored.lock().take().unwrap().wake();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(Pin::new(&mut gated).poll(&mut cx).is_ready());
    }

    #[test]
    fn a_new_task_waker_lets_the_next_poll_through() {
        let (polls, stored) = (AtomicU32::new(0), Mutex::new(None));
        let mut gated = Gated::new(counting(&polls, &stored));
        let (one, other) =
            (Waker::from(Arc::new(WakeCount::default())), Waker::from(Arc::new(WakeCount::default())));
        assert!(Pin::new(&mut gated).poll(&mut Context::from_waker(&one)).is_pending());
        assert!(Pin::new(&mut gated).poll(&mut Context::from_waker(&other)).is_ready());
    }
}
