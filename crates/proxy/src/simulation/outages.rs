//! What happens to routers and to the network between them: cuts, broken connections, crashes, restarts and stops.

use std::time::Duration;

use maitre_base::Rng;

use super::cluster::{Network, SILENCE_MAX};
use super::router::SimulatedRouter;
use super::world::World;

/// Added to the time of a start, so that a clock can be set back.
const EPOCH_MS: u64 = 1_000_000;

fn millis(rng: &mut Rng, below: usize) -> Duration {
    Duration::from_millis(rng.below(below) as u64)
}

/// Starts a router. Its incarnation is the time.
pub(super) fn start(world: &World, router: &SimulatedRouter) {
    router.start(EPOCH_MS + world.now_ms());
}

/// Disturbs the cluster until the run ends. A router that is down then stays down.
pub(super) async fn disturb(world: &World, network: &Network, seed: u64) {
    let mut rng = Rng::new(seed);
    for _ in 0..rng.below(6) {
        if !world.goes_on_after(millis(&mut rng, 3_000)).await {
            return;
        }
        let router = &world.routers[rng.below(world.routers.len())];
        let peer = (router.index + 1 + rng.below(world.routers.len() - 1)) % world.routers.len();
        let others = || (0..world.routers.len()).filter(|&it| it != router.index);
        match rng.below(8) {
            0 => cut(world, network, &[(router.index, peer), (peer, router.index)], &mut rng).await,
            1 => cut(world, network, &[(router.index, peer)], &mut rng).await,
            2 => {
                let both = others().flat_map(|it| [(router.index, it), (it, router.index)]);
                cut(world, network, &both.collect::<Vec<_>>(), &mut rng).await;
            }
            3 => {
                world.say(&format!("the connection of {} and router{peer} breaks", router.name));
                network.reset(router.index, peer);
            }
            4..6 => crash(world, router, &mut rng).await,
            _ => stop(world, router, &mut rng).await,
        }
    }
}

/// Stops these directions for a while. A long silence also ends the connections.
async fn cut(world: &World, network: &Network, links: &[(usize, usize)], rng: &mut Rng) {
    let lasts = millis(rng, 9_000);
    world.say(&format!("the network is cut for {lasts:?}: {links:?}"));
    links.iter().for_each(|&(from, to)| network.set_cut(from, to, true));
    world.goes_on_after(lasts.min(SILENCE_MAX)).await;
    if lasts > SILENCE_MAX {
        links.iter().for_each(|&(from, to)| network.reset(from, to));
        world.goes_on_after(lasts - SILENCE_MAX).await;
    }
    world.say("the network is healed");
    links.iter().for_each(|&(from, to)| network.set_cut(from, to, false));
}

async fn crash(world: &World, router: &SimulatedRouter, rng: &mut Rng) {
    // One stays, or there would be nothing to check.
    let Some(process) = router.process().filter(|_| world.running().len() > 1) else { return };
    world.say(&format!("{} crashes", router.name));
    process.crash();
    restart(world, router, rng).await;
}

async fn stop(world: &World, router: &SimulatedRouter, rng: &mut Rng) {
    let Some(process) = router.process().filter(|_| world.running().len() > 1) else { return };
    world.say(&format!("{} is stopped", router.name));
    if let Some(panic) = process.stop().await {
        world.violate(&format!("{} panicked: {panic}", router.name));
    }
    world.say(&format!("{} has left", router.name));
    restart(world, router, rng).await;
}

/// Mostly, after a while: at once or after peers have noticed. Seldom by a clock that was set back meanwhile.
async fn restart(world: &World, router: &SimulatedRouter, rng: &mut Rng) {
    let (after, stays_down) = (millis(rng, 6_000), rng.below(3) == 0);
    if stays_down || !world.goes_on_after(after).await {
        return;
    }
    let back_ms = if rng.below(6) == 0 { EPOCH_MS / 2 } else { 0 };
    world.say(&format!("{} restarts, its clock set back by {back_ms} ms", router.name));
    router.start(EPOCH_MS + world.now_ms() - back_ms);
}
