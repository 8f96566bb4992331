// The NCCL transport, call by call, for every algorithm: more ranks than any one GPU can show.
#include <gtest/gtest.h>

#include <chrono>

#include "comm/cuda/device_transport.h"
#include "comm/threads/thread_world.h"
#include "core/testing/test_support.h"
#include "emulation/emulated_device.h"
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
  const auto runs = [](DeviceCase c) {
    c.transport = "nccl";
    c.ranks = c.devices = 4;
    return run_device_case(c);
  };
  CasesRun layouts, collectives;
  for (const AlgorithmInfo& algorithm : algorithms()) {
    const std::string name(algorithm.name);
    if (algorithm.pattern == PatternKind::kDense && !algorithm.one_rank_only)
      for (const LayoutKind layout : {LayoutKind::kZigzag, LayoutKind::kStriped})
        layouts.add(name, runs({.algorithm = name, .causal = true, .layout = layout}));
    if (algorithm.collectives != CollectiveUse::kNone)
      for (const char* collective : {"ring", "bruck", "recursive_doubling", "pairwise", "linear"})
        collectives.add(name, runs({.algorithm = name, .collective = collective}));
  }
  layouts.expect_some_of_each();
  collectives.expect_some_of_each();
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

// After the first run, when all are connected: the other ranks' devices wait for a message that
// never comes, and all end with the reason.
TEST(NcclRanksTest, ARankThatFailsEndsTheOthers) {
  for (const auto& [name, call] : {std::pair{"ring", 6}, {"dilated", 4}, {"ulysses", 14}}) {
    emulate_nccl_failure(1, call);
    std::string reason;
    const auto begin = std::chrono::steady_clock::now();
    try {
      run_device_case({.algorithm = name, .transport = "nccl", .ranks = 3, .devices = 3});
    } catch (const std::exception& e) {
      reason = e.what();
    }
    emulate_nccl_failure(-1, 0);
    emulate_devices(1);
    EXPECT_NE(reason.find("NCCL, nccl"), std::string::npos) << name << ": " << reason;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15)) << name;
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
