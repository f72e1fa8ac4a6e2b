//! The memory that request bodies may take: all together, those of a tenant, and those that a connection still sends.
//!
//! Bytes count as they arrive. What a client announces in `content-length` counts for nothing: it costs the client
//! nothing either, and sixty-four announcements of 16 MiB would otherwise fill the default limit.
//!
//! A body under way may never be completed. So bodies under way share half of the memory: clients that stop in the
//! middle of large bodies cannot keep out small ones, which are complete with their first packet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use maitre_base::TenantId;
use maitre_base::hash::NumberMap;
use parking_lot::Mutex;

use crate::refuse::BodyLimit;
use crate::settings::{RouterLimits, SharedSettings};

/// A body under way of at most this size is not refused for the sake of other bodies under way. Chosen: most chats are
/// smaller, and the default number of connections times this size is `limits.bodies`.
const SMALL_BYTES: u64 = 64 << 10;

pub(crate) struct BodyMemory {
    settings: Arc<SharedSettings>,
    /// Bytes of all bodies.
    held: AtomicU64,
    /// Bytes of bodies under way.
    receiving: AtomicU64,
    /// Bytes by tenant, for callers with a key. As many entries as tenants with requests in flight.
    tenants: Mutex<NumberMap<u64>>,
}

/// Bytes of the bodies under way on one connection.
#[derive(Default)]
pub(crate) struct ConnectionBodies(AtomicU64);

impl BodyMemory {
    pub(crate) fn new(settings: Arc<SharedSettings>) -> BodyMemory {
        BodyMemory {
            settings,
            held: AtomicU64::new(0),
            receiving: AtomicU64::new(0),
            tenants: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed) + self.receiving.load(Ordering::Relaxed)
    }

    /// A body of which nothing has arrived. `tenant` is None for callers without a key: a name that nobody checks
    /// limits nobody.
    pub(crate) fn begin(
        self: &Arc<Self>,
        tenant: Option<TenantId>,
        connection: Arc<ConnectionBodies>,
    ) -> BodyReservation {
        BodyReservation { memory: self.clone(), tenant, connection, held: 0, receiving: 0 }
    }

    fn add_to_tenant(&self, tenant: TenantId, bytes: u64) -> u64 {
        let mut tenants = self.tenants.lock();
        let held = tenants.entry(tenant.0).or_default();
        *held += bytes;
        *held
    }

    fn take_from_tenant(&self, tenant: TenantId, bytes: u64) {
        let mut tenants = self.tenants.lock();
        let Some(held) = tenants.get_mut(&tenant.0) else { return };
        *held = held.saturating_sub(bytes);
        if *held == 0 {
            tenants.remove(&tenant.0);
        }
    }
}

/// The memory of one body, released when dropped.
pub(crate) struct BodyReservation {
    memory: Arc<BodyMemory>,
    tenant: Option<TenantId>,
    connection: Arc<ConnectionBodies>,
    held: u64,
    /// The same bytes while the body is under way; zero once it is complete.
    receiving: u64,
}

impl BodyReservation {
    /// The body has grown to `bytes`, and more will follow.
    pub(crate) fn receive(&mut self, bytes: usize) -> Result<(), BodyLimit> {
        self.hold(bytes)?;
        let more = self.held - self.receiving;
        self.receiving = self.held;
        let all = self.memory.receiving.fetch_add(more, Ordering::Relaxed) + more;
        let own = self.connection.0.fetch_add(more, Ordering::Relaxed) + more;
        let limits = self.memory.settings.load().limits;
        // One body of the largest size always fits, whatever the other limits are.
        let one = limits.body_bytes as u64;
        if own > one.max(limits.bodies_per_connection_bytes as u64) {
            return Err(BodyLimit::Connection);
        }
        let is_small = self.held <= SMALL_BYTES;
        if !is_small && all > one.max(limits.bodies_bytes as u64 / 2) {
            return Err(BodyLimit::All);
        }
        Ok(())
    }

    /// The body is complete, with `bytes`.
    pub(crate) fn complete(&mut self, bytes: usize) -> Result<(), BodyLimit> {
        self.end_receiving();
        self.hold(bytes)
    }

    /// The additions are made before the checks; dropping the reservation takes them back.
    fn hold(&mut self, bytes: usize) -> Result<(), BodyLimit> {
        let more = (bytes as u64).saturating_sub(self.held);
        if more == 0 {
            return Ok(());
        }
        self.held += more;
        let memory = &self.memory;
        let RouterLimits { body_bytes, bodies_bytes, bodies_per_tenant_bytes, .. } =
            memory.settings.load().limits;
        let all = memory.held.fetch_add(more, Ordering::Relaxed) + more;
        let own = self.tenant.map_or(0, |it| memory.add_to_tenant(it, more));
        if own > body_bytes.max(bodies_per_tenant_bytes) as u64 {
            return Err(BodyLimit::Tenant);
        }
        if all > bodies_bytes as u64 { Err(BodyLimit::All) } else { Ok(()) }
    }

    fn end_receiving(&mut self) {
        let bytes = std::mem::take(&mut self.receiving);
        self.memory.receiving.fetch_sub(bytes, Ordering::Relaxed);
        self.connection.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for BodyReservation {
    fn drop(&mut self) {
        self.end_receiving();
        self.memory.held.fetch_sub(self.held, Ordering::Relaxed);
        if let Some(tenant) = self.tenant.filter(|_| self.held > 0) {
            self.memory.take_from_tenant(tenant, self.held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::RouterSettings;

    const MIB: usize = 1 << 20;

    fn memory() -> Arc<BodyMemory> {
        let limits = RouterLimits {
            body_bytes: 4 * MIB,
            bodies_bytes: 40 * MIB,
            bodies_per_tenant_bytes: 16 * MIB,
            bodies_per_connection_bytes: 8 * MIB,
            ..RouterLimits::default()
        };
        let settings = SharedSettings::new(RouterSettings { limits, ..RouterSettings::default() });
        Arc::new(BodyMemory::new(Arc::new(settings)))
    }

    fn stranger(memory: &Arc<BodyMemory>) -> BodyReservation {
        memory.begin(None, Arc::default())
    }

    #[test]
    fn a_body_that_does_not_fit_gives_back_what_it_took() {
        let memory = memory();
        let mut bodies: Vec<BodyReservation> = (0..10).map(|_| stranger(&memory)).collect();
        assert!(bodies.iter_mut().all(|it| it.complete(4 * MIB).is_ok()));
        assert_eq!(stranger(&memory).complete(1), Err(BodyLimit::All));
        bodies.pop();
        assert_eq!(stranger(&memory).complete(4 * MIB), Ok(()));
        drop(bodies);
        assert_eq!(memory.held.load(Ordering::Relaxed), 0);
        assert_eq!(memory.receiving.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn bodies_under_way_leave_half_of_the_memory_to_complete_and_small_ones() {
        let memory = memory();
        let mut held: Vec<BodyReservation> = (0..5).map(|_| stranger(&memory)).collect();
        assert!(held.iter_mut().all(|it| it.receive(4 * MIB).is_ok()));
        assert_eq!(stranger(&memory).receive(MIB), Err(BodyLimit::All));
        assert_eq!(stranger(&memory).receive(SMALL_BYTES as usize), Ok(()));
        assert_eq!(stranger(&memory).complete(4 * MIB), Ok(()));
        // One of them is completed, and another one may come.
        assert_eq!(held[0].complete(4 * MIB), Ok(()));
        assert_eq!(stranger(&memory).receive(4 * MIB), Ok(()));
    }

    #[test]
    fn a_connection_has_its_own_limit_for_bodies_under_way() {
        let memory = memory();
        let connection: Arc<ConnectionBodies> = Arc::default();
        let begin = || memory.begin(None, connection.clone());
        let mut bodies = [begin(), begin()];
        assert!(bodies.iter_mut().all(|it| it.receive(4 * MIB).is_ok()));
        assert_eq!(begin().receive(1), Err(BodyLimit::Connection));
        assert_eq!(stranger(&memory).receive(1), Ok(()));
        assert_eq!(bodies[0].complete(4 * MIB), Ok(()));
        assert_eq!(begin().receive(4 * MIB), Ok(()));
    }

    #[test]
    fn a_tenant_has_its_own_limit_for_all_its_bodies() {
        let memory = memory();
        let begin = |tenant| memory.begin(Some(TenantId(tenant)), Arc::default());
        let mut bodies: Vec<BodyReservation> = (0..4).map(|_| begin(7)).collect();
        assert!(bodies.iter_mut().all(|it| it.complete(4 * MIB).is_ok()));
        assert_eq!(begin(7).complete(1), Err(BodyLimit::Tenant));
        assert_eq!(begin(8).complete(4 * MIB), Ok(()));
        drop(bodies);
        assert!(memory.tenants.lock().is_empty());
    }
}
