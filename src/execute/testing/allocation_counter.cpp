// A file of its own, so that the compiler does not inline the operators into callers.
#include "execute/testing/allocation_counter.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<int64_t> allocations{0}, alive_bytes{0}, most_bytes{0};

void* counted(void* p) {
  if (p == nullptr) throw std::bad_alloc();
  ++allocations;
  const int64_t size = int64_t(malloc_usable_size(p)), alive = alive_bytes += size;
  if (most_bytes > 0 && alive > most_bytes) {
    alive_bytes -= size;
    std::free(p);
    throw std::bad_alloc();
  }
  return p;
}

void release(void* p) {
  alive_bytes -= int64_t(malloc_usable_size(p));
  std::free(p);
}
}  // namespace

// Not inlined: GCC takes an inlined pair for a mismatch of new and free.
[[gnu::noinline]] void* operator new(size_t size) { return counted(std::malloc(size)); }
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t align) {
  const auto at = size_t(align);
  return counted(std::aligned_alloc(at, (size + at - 1) / at * at));
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  try {
    return operator new(size);  // e.g. the buffer of std::stable_sort
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* p) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, size_t, std::align_val_t) noexcept { release(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { release(p); }

namespace longnet {
int64_t allocations_so_far() { return allocations; }
int64_t allocated_bytes() { return alive_bytes; }
void limit_allocated_bytes(int64_t bytes) { most_bytes = bytes; }
}  // namespace longnet
