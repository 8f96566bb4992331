// The NCCL transport, call by call, for every algorithm: more ranks than any one GPU can show.
#include <gtest/gtest.h>

#include "comm/cuda/device_transport.h"
#include "comm/nccl/testing/emulated_nccl.h"
#include "comm/threads/thread_world.h"
#include "core/cuda/testing/emulated_device.h"
#include "execute/cuda/testing/device_case.h"
#include "schedule/registry.h"

namespace longnet {
namespace {

TEST(NcclRanksTest, EveryAlgorithm) {
  int ran = 0;
  for (const AlgorithmInfo& algorithm : algorithms())
    for (const int ranks : {1, 2, 3, 4, 6})
      for (const bool causal : {false, true})
        ran += run_device_case({.algorithm = std::string(algorithm.name),
                                .transport = "nccl",
                                .ranks = ranks,
                                .devices = ranks,
                                .causal = causal});
  EXPECT_GT(ran, 60);
}

TEST(NcclRanksTest, LayoutsAndCollectives) {
  const auto run = [](DeviceCase c) {
    c.transport = "nccl";
    c.ranks = c.devices = 4;
    EXPECT_TRUE(run_device_case(c)) << c.algorithm;
  };
  for (const char* name : {"ring", "all_gather", "double_ring", "bidirectional_ring"})
    for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
      run({.algorithm = name, .causal = true, .layout = layout});
  for (const char* collective : {"ring", "bruck", "recursive_doubling", "pairwise", "linear"})
    for (const char* name : {"dilated", "ulysses", "all_gather"})
      run({.algorithm = name, .collective = collective});
}

// Every byte that moves lies in registered memory, and nothing stays registered.
TEST(NcclRanksTest, RegisteredBuffers) {
  for (const AlgorithmInfo& algorithm : algorithms()) {
    const NcclUse before = nccl_use();
    if (!run_device_case({.algorithm = std::string(algorithm.name),
                          .transport = "nccl_registered",
                          .ranks = 3,
                          .devices = 3}))
      continue;
    const NcclUse after = nccl_use();
    EXPECT_GT(after.calls, before.calls) << algorithm.name;
    EXPECT_EQ(after.calls - before.calls, after.registered_calls - before.registered_calls)
        << algorithm.name;
    EXPECT_EQ(after.registered_buffers, 0);
  }
}

TEST(NcclRanksTest, AutoTakesNcclWhereEveryRankHasAGpu) {
  emulate_devices(3);
  run_on_threads(3, [](Communicator& comm) {
    use_device(device_of_rank(comm));
    EXPECT_EQ(make_device_transport("auto", comm)->name(), "nccl");
    comm.barrier();
  });
  emulate_devices(1);
}

}  // namespace
}  // namespace longnet
