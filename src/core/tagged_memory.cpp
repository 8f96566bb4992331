#include "core/tagged_memory.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "core/check.h"

namespace longnet {
namespace {

// Rows of a dilated segment lie kilobytes apart: huge pages save TLB misses. The rest of a buffer
// after its last whole huge page has small pages, so that no memory is wasted.
std::byte* allocate(size_t bytes) {
  constexpr size_t kAlign = 64, kHugePage = size_t(2) << 20;
  const size_t align = bytes >= 2 * kHugePage ? kHugePage : kAlign;
  void* data = nullptr;
  if (posix_memalign(&data, align, (bytes + kAlign - 1) / kAlign * kAlign) != 0) return nullptr;
#if defined(__linux__)
  if (align == kHugePage) madvise(data, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
#endif
  return static_cast<std::byte*>(data);
}

}  // namespace

TaggedBuffer::TaggedBuffer(MemoryLedger& ledger, std::string tag, int64_t bytes)
    : ledger_(&ledger), tag_(std::move(tag)), bytes_(bytes) {
  check(bytes >= 0, "a buffer of ", bytes, " bytes");
  if (bytes > 0) {
    data_ = allocate(size_t(bytes));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ledger.add(tag_, bytes);
}

TaggedBuffer::TaggedBuffer(TaggedBuffer&& other) noexcept { *this = std::move(other); }

TaggedBuffer& TaggedBuffer::operator=(TaggedBuffer&& other) noexcept {
  if (this != &other) {
    release();
    ledger_ = std::exchange(other.ledger_, nullptr);
    tag_ = std::move(other.tag_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

TaggedBuffer::~TaggedBuffer() { release(); }

void TaggedBuffer::release() {
  if (ledger_ == nullptr) return;
  std::free(data_);
  ledger_->add(tag_, -bytes_);
  ledger_ = nullptr;
}

void MemoryLedger::add(const std::string& tag, int64_t bytes) {
  now_ += bytes;
  peak_ = std::max(peak_, now_);
  int64_t& of_tag = now_by_tag_[tag];
  of_tag += bytes;
  int64_t& peak = peak_by_tag_[tag];
  peak = std::max(peak, of_tag);
}

}  // namespace longnet
