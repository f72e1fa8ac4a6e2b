"""Lets vLLM 0.32 without a GPU keep KV cache in a second tier, from which other servers can pull it (docs/kv-pull.md).

vLLM refuses that on a CPU because it copies with CUDA streams. Here the cache is in host memory already, so a plain copy is enough. vLLM loads this file as a plug-in:
"spec_name":"HostTier","spec_module_path":"real_vllm_cpu_tier", with this folder in PYTHONPATH. Look-ups, the channel between peers, NIXL, metrics and events are vLLM's own.

It also makes spinning loops sleep: on two cores two idle servers left no CPU for the one that computes, and pulls timed out.
"""

import os
import time

from nixl import _api as nixl
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

# An engine with a peer-to-peer tier never stops stepping.
STEP_SECONDS = 0.005
os.sched_yield = lambda: time.sleep(0.0005)


class SleepingAgent(nixl.nixlBind.nixlAgentConfig):
    """NIXL's thread sleeps for a millisecond after each look, instead of not at all."""

    def __setattr__(self, name, value):
        super().__setattr__(name, 1000 if name == "pthrDelay" else value)


nixl.nixlBind.nixlAgentConfig = SleepingAgent


class HostCopies(OffloadingWorker):
    def __init__(self, caches, region):
        self.region, self.groups, self.finished = region, caches.group_data_refs, []
        self.cache = [it.tensor for it in caches.tensors]
        self.tier = [region.create_next_worker_view(it.page_size_bytes) for it in caches.tensors]

    def copy(self, job, cached, tiered, is_store):
        started, size, first = time.perf_counter(), 0, 0
        for group, count in zip(self.groups, cached.group_sizes):
            blocks = range(first, first + count)
            first += count
            for part in group:
                for block in blocks:
                    here = self.cache[part.tensor_idx][int(cached.block_ids[block]), : part.page_size_bytes]
                    there = self.tier[part.tensor_idx][int(tiered.block_ids[block]), : part.page_size_bytes]
                    there.copy_(here) if is_store else here.copy_(there)
                    size += part.page_size_bytes
        took = time.perf_counter() - started
        self.finished.append(TransferResult(job_id=job, success=True, transfer_size=size, transfer_time=took))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        time.sleep(STEP_SECONDS)
        finished, self.finished = self.finished, []
        return finished

    def wait(self, job_ids):
        """Copies are complete when they return."""

    def shutdown(self):
        self.cache = self.tier = []
        self.region.cleanup()


class HostTier(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if self.blocks_per_chunk != 1:
            raise ValueError("HostTier copies blocks of the cache: leave block_size out of kv_connector_extra_config")
        if not self._worker:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=self.config.parallel.rank,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            self._worker = HostCopies(kv_caches, region)
        return self._worker
