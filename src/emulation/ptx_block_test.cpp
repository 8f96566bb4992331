// Shared memory of a block and its clocks, without a kernel: which accesses are races.
#include "emulation/ptx_block.h"

#include <gtest/gtest.h>

#include "core/check.h"

namespace longnet::ptx {
namespace {

TEST(PtxBlock, AsynchronousGroupsEndInTheirOrder) {
  Asynchronous copies;
  std::string done;
  for (const char* name : {"a", "b", "c"}) {
    copies.open.push_back([&done, name] { done += name; });
    if (*name != 'a') copies.commit();  // a and b are one group
  }
  copies.wait(1);
  EXPECT_EQ(done, "ab");
  EXPECT_FALSE(copies.empty());
  copies.wait(0);
  EXPECT_EQ(done, "abc");
  EXPECT_TRUE(copies.empty());
}

TEST(PtxBlock, AWriteIsARaceUnlessTheReaderHasAcquiredIt) {
  SharedMemory memory(1024, 2);
  memory.write(64, 4, 0);
  memory.read(64, 4, 0);  // its own
  EXPECT_THROW(memory.read(64, 4, 1), Error);
  memory.read(128, 4, 1);  // elsewhere
  memory.acquire(1, memory.release(0));
  memory.read(64, 4, 1);
  EXPECT_THROW(memory.write(64, 4, 0), Error);  // warp 1 may still be reading
  memory.acquire(0, memory.release(1));
  memory.write(64, 4, 0);
  EXPECT_THROW(memory.read(1021, 4, 0), Error);  // outside
}

TEST(PtxBlock, WhatABulkCopyWritesIsThereBehindItsBarrier) {
  SharedMemory memory(1024, 2);
  const VectorClock issued = memory.clock(0);
  memory.write_bulk(256, 16, /*number=*/0, issued);
  EXPECT_THROW(memory.read(256, 4, 0), Error);  // not even by the warp that asked for it
  memory.acquire(0, memory.release_bulk(0, issued));
  memory.read(256, 4, 0);
}

TEST(PtxBlock, ASwizzleIsItsOwnInverseWithinEightRows) {
  std::set<uint64_t> places;
  for (uint64_t at = 0; at < 1024; ++at) {
    EXPECT_EQ(swizzled(swizzled(at)), at);
    EXPECT_EQ(swizzled(at) / 128, at / 128);  // the same row
    places.insert(swizzled(at));
  }
  EXPECT_EQ(places.size(), 1024u);
  EXPECT_EQ(swizzled(3 * 128 + 16), 3u * 128 + 32);  // row 3, chunk 1: chunk 1 ^ 3
}

TEST(PtxBlock, LanesOfAMaskComeInOrder) {
  std::vector<int> lanes;
  for_lanes(0x80000005, [&](int l) { lanes.push_back(l); });
  EXPECT_EQ(lanes, (std::vector{0, 2, 31}));
}

}  // namespace
}  // namespace longnet::ptx
