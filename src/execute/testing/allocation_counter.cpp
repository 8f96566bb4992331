// A file of its own, so that the compiler does not inline the operators into callers.
#include "execute/testing/allocation_counter.h"

#include <atomic>
#include <cstdlib>
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
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t align) {
  ++allocations;
  const auto at = size_t(align);
  if (void* p = std::aligned_alloc(at, (size + at - 1) / at * at)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace longnet {
int64_t allocations_so_far() { return allocations; }
}  // namespace longnet
