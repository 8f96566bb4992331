#include "core/tagged_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>

namespace longnet {
namespace {

TEST(TaggedMemory, PeaksCountBuffersThatLiveTogether) {
  MemoryLedger ledger;
  {
    TaggedBuffer a(ledger, "kv", 100), b(ledger, "kv", 50);
    TaggedBuffer moved = std::move(a);
    EXPECT_EQ(moved.size(), 100);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(moved.data()) % 64, 0u);
  }
  TaggedBuffer c(ledger, "output", 120), none(ledger, "output", 0);
  EXPECT_EQ(ledger.peak_bytes(), 150);
  EXPECT_EQ(ledger.peak_by_tag().at("kv"), 150);
  EXPECT_EQ(ledger.peak_by_tag().at("output"), 120);
  EXPECT_EQ(ledger.peak_bytes("output"), 120);
  EXPECT_EQ(ledger.peak_bytes("unheard of"), 0);
}

}  // namespace
}  // namespace longnet
