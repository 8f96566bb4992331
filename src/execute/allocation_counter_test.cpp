// Replaces the global operator new of the test program by one that counts. A file of its own, so
// that the compiler does not inline it into callers.
#include "execute/allocation_counter.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

namespace {
std::atomic<int64_t> allocations{0};
}

// Not inlined: GCC takes an inlined pair for a mismatch of new and free.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace longnet {

int64_t allocations_so_far() { return allocations; }

TEST(AllocationCounter, Counts) {
  const int64_t before = allocations_so_far();
  auto* const p = new int(3);
  asm volatile("" : : "r"(p) : "memory");  // keep the pair from being optimised away
  delete p;
  EXPECT_EQ(allocations_so_far(), before + 1);
}

}  // namespace longnet
