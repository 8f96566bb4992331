#include "core/tagged_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/check.h"

namespace longnet {
namespace {

// Rows of a dilated segment lie kilobytes apart: huge pages save TLB misses. The rest of a buffer
// after its last whole huge page has small pages, so that no memory is wasted.
void* allocate(int64_t size) {
  check(size >= 0, "a buffer of ", size, " bytes");
  if (size == 0) return nullptr;
  constexpr size_t kAlign = 64, kHugePage = size_t(2) << 20;
  const auto bytes = size_t(size);
  const size_t align = bytes >= 2 * kHugePage ? kHugePage : kAlign;
  void* data = nullptr;
  if (posix_memalign(&data, align, (bytes + kAlign - 1) / kAlign * kAlign) != 0)
    throw std::bad_alloc();
#if defined(__linux__)
  if (align == kHugePage) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return data;
}

}  // namespace

int64_t total_bytes(const std::map<std::string, int64_t>& by_tag) {
  int64_t sum = 0;
  for (const auto& [tag, bytes] : by_tag) sum += bytes;
  return sum;
}

TaggedBuffer::TaggedBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes)
    : LedgerBuffer(ledger, tag, bytes, allocate(bytes), std::free) {}

void MemoryLedger::add(const std::string& tag, int64_t bytes) {
  now_ += bytes;
  peak_ = std::max(peak_, now_);
  int64_t& of_tag = now_by_tag_[tag];
  of_tag += bytes;
  int64_t& peak = peak_by_tag_[tag];
  peak = std::max(peak, of_tag);
}

}  // namespace longnet
