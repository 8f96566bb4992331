// Events leave by time, and those of one time in the order in which they came.
#include "simulate/event_queue.h"

#include <gtest/gtest.h>

#include <map>

namespace longnet {
namespace {

// Against a sorted map; far more times than the queue remembers lists for, most of them shared.
TEST(EventQueue, KeepsTheOrderOfASortedMap) {
  EventQueue queue;
  std::multimap<double, uint32_t> expected;  // equal keys keep the order of insertion
  uint32_t state = 1, next = 0;
  const auto random = [&](uint32_t n) {
    return (state = state * 1664525 + 1013904223) / 65536 % n;
  };
  double now = 0;
  for (int step = 0; step < 40000; ++step) {
    if (random(5) < (step < 20000 ? 3u : 2u)) {
      const double time = now + (random(2) ? random(4) : random(8000)) / 16.0;
      queue.push(time, EventKind::kFlowEnds, next, next + 1);
      expected.emplace(time, next++);
    } else if (!expected.empty()) {
      ASSERT_EQ(queue.next_time(), now = expected.begin()->first);
      const QueuedEvent e = queue.pop();
      ASSERT_EQ(e.id, expected.begin()->second);
      ASSERT_EQ(e.version, e.id + 1);
      expected.erase(expected.begin());
    }
    ASSERT_EQ(queue.empty(), expected.empty());
  }
  EXPECT_GT(next, 15000u);
}

}  // namespace
}  // namespace longnet
