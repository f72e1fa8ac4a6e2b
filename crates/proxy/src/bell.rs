//! Lets a task skip what has not called for it.
//!
//! hyper polls a response body two or three times for each piece of a stream, and every poll of a
//! connection also polls its watchdog and the house's closing. Asked again, a socket or a timer that is
//! still waiting takes hundreds of instructions to say so. Behind a bell it takes a dozen: the bell stands
//! between it and the task, and what has not rung is not asked.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

/// A waker of our own before the task's.
pub(crate) struct Bell {
    rope: Arc<Rope>,
    waker: Waker,
    /// The task the rope knows, to be compared without its lock.
    task: Waker,
}

struct Rope {
    rung: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for Rope {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.rung.store(true, Ordering::Release);
        self.task.lock().wake_by_ref();
    }
}

impl Default for Bell {
    /// Rung from the start: what was never asked must be.
    fn default() -> Bell {
        let rope = Rope { rung: AtomicBool::new(true), task: Mutex::new(Waker::noop().clone()) };
        let rope = Arc::new(rope);
        Bell { waker: Waker::from(rope.clone()), rope, task: Waker::noop().clone() }
    }
}

impl Bell {
    /// Whether it has rung since the last time; if so, the context to ask with.
    pub(crate) fn answer(&mut self, cx: &Context<'_>) -> Option<Context<'_>> {
        // The task must be known before we look: a ring between the two then wakes it.
        if !self.task.will_wake(cx.waker()) {
            self.task.clone_from(cx.waker());
            self.rope.task.lock().clone_from(cx.waker());
            self.ring();
        }
        // Looked at before it is taken: taking it is what costs, and mostly there is nothing to take.
        let rung = self.rope.rung.load(Ordering::Relaxed) && self.rope.rung.swap(false, Ordering::Acquire);
        rung.then(|| Context::from_waker(&self.waker))
    }

    /// To be asked again although nothing rang.
    pub(crate) fn ring(&self) {
        self.rope.rung.store(true, Ordering::Release);
    }
}

/// A future behind a bell.
pub(crate) struct Behind<F> {
    bell: Bell,
    future: Pin<Box<F>>,
}

impl<F: Future> Behind<F> {
    pub(crate) fn new(future: F) -> Behind<F> {
        Behind { bell: Bell::default(), future: Box::pin(future) }
    }
}

impl<F: Future> Future for Behind<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Behind { bell, future } = &mut *self;
        match bell.answer(cx) {
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
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A future that counts how often it is asked, and leaves its waker behind.
    fn counting(asked: &AtomicU32, left: &Mutex<Option<Waker>>) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            *left.lock() = Some(cx.waker().clone());
            match asked.fetch_add(1, Ordering::Relaxed) {
                0 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
    }

    #[test]
    fn what_has_not_rung_is_not_asked_and_what_has_wakes_the_task() {
        let (asked, left) = (AtomicU32::new(0), Mutex::new(None));
        let wakes = Arc::new(Count::default());
        let waker = Waker::from(wakes.clone());
        let mut cx = Context::from_waker(&waker);
        let mut behind = Behind::new(counting(&asked, &left));
        for _ in 0..5 {
            assert!(Pin::new(&mut behind).poll(&mut cx).is_pending());
        }
        assert_eq!((asked.load(Ordering::Relaxed), wakes.0.load(Ordering::Relaxed)), (1, 0));
        left.lock().take().unwrap().wake();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(Pin::new(&mut behind).poll(&mut cx).is_ready());
    }

    #[test]
    fn a_task_that_changes_its_waker_is_asked_for_anew() {
        let (asked, left) = (AtomicU32::new(0), Mutex::new(None));
        let mut behind = Behind::new(counting(&asked, &left));
        let (one, other) = (Waker::from(Arc::new(Count::default())), Waker::from(Arc::new(Count::default())));
        assert!(Pin::new(&mut behind).poll(&mut Context::from_waker(&one)).is_pending());
        assert!(Pin::new(&mut behind).poll(&mut Context::from_waker(&other)).is_ready());
    }
}
