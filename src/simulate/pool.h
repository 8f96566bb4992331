// A pool of slots in a vector, and lists of slots: an engine makes and ends millions of small
// objects.
#pragma once
#include <cstdint>
#include <vector>

namespace longnet {

// Out of line: callers would spill registers for it on every call.
template <class T>
[[gnu::noinline, gnu::cold]] uint32_t new_slot(std::vector<T>& pool) {
  pool.emplace_back();
  return uint32_t(pool.size()) - 1;
}

// Returns the index of a slot: one of `free`, else a new one. Push the index to `free` after its
// use.
template <class T>
uint32_t take_slot(std::vector<T>& pool, std::vector<uint32_t>& free) {
  if (free.empty()) return new_slot(pool);
  const uint32_t id = free.back();
  free.pop_back();
  return id;
}

inline constexpr uint32_t kNoSlot = ~0u;

// Appends slot `id` to the list from `first` to `last`, whose links are T::next. kNoSlot: empty.
template <class T>
void append(std::vector<T>& pool, uint32_t id, uint32_t& first, uint32_t& last) {
  (first == kNoSlot ? first : pool[last].next) = id;
  last = id;
}

}  // namespace longnet
