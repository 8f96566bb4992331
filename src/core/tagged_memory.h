// Tagged memory: every buffer has a tag for its purpose, and a ledger has the peak of each tag.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

namespace longnet {

// Tags of buffers that more than one room books or tells apart; those of slots are schedule's.
inline constexpr char kWorkspaceTag[] = "workspace";  // a kernel's scratch memory
// Lists that a GPU holds beside the slots: tasks and tiles. They follow from its kernel.
inline constexpr char kTaskLists[] = "task_lists";
// Lists of a program and its executor: dependencies, tasks, messages in flight. No plan predicts
// them.
inline constexpr char kProgramLists[] = "program_lists";

// The sum of bytes by tag.
int64_t total_bytes(const std::map<std::string, int64_t>& by_tag);

// Counts the bytes of the allocated buffers. Not shared between threads: one ledger per rank.
class MemoryLedger {
 public:
  int64_t now_bytes() const { return now_; }
  int64_t peak_bytes() const { return peak_; }
  int64_t peak_bytes(const std::string& tag) const {
    const auto it = peak_by_tag_.find(tag);
    return it == peak_by_tag_.end() ? 0 : it->second;
  }
  const std::map<std::string, int64_t>& peak_by_tag() const { return peak_by_tag_; }
  // Device buffers beyond this number of bytes are refused (DeviceOutOfMemory); 0: no limit.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  bool admits(int64_t bytes) const { return limit_ == 0 || now_ + bytes <= limit_; }
  int64_t limit() const { return limit_; }

 private:
  friend struct FreeCounted;
  friend class LedgerBuffer;
  void add(const std::string& tag, int64_t bytes);
  int64_t now_ = 0, peak_ = 0, limit_ = 0;
  std::map<std::string, int64_t> now_by_tag_, peak_by_tag_;
};

// Frees a block of memory and takes its bytes off the ledger.
struct FreeCounted {
  MemoryLedger* ledger = nullptr;
  std::string tag{};
  int64_t bytes = 0;
  void (*free)(void*) = nullptr;
  void operator()(std::byte* data) const {
    free(data);
    ledger->add(tag, -bytes);
  }
};

// A block of memory that a ledger counts until it is freed.
class LedgerBuffer {
 public:
  LedgerBuffer() = default;
  std::byte* data() const { return data_.get(); }
  int64_t size() const { return data_ ? data_.get_deleter().bytes : 0; }
  std::span<std::byte> bytes() const { return {data(), size_t(size())}; }

 protected:
  LedgerBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes, void* data,
               void (*free)(void*))
      : data_(static_cast<std::byte*>(data), FreeCounted{&ledger, tag, bytes, free}) {
    ledger.add(tag, bytes);
  }

 private:
  std::unique_ptr<std::byte, FreeCounted> data_;
};

// Memory of the host, 64-byte aligned.
class TaggedBuffer : public LedgerBuffer {
 public:
  TaggedBuffer() = default;
  TaggedBuffer(MemoryLedger& ledger, const std::string& tag, int64_t bytes);
};

// Counts bytes that have another owner, from `first` on: what lists hold.
class CountedBytes : public LedgerBuffer {
 public:
  CountedBytes() = default;
  CountedBytes(MemoryLedger& ledger, const std::string& tag, int64_t bytes, void* first)
      : LedgerBuffer(ledger, tag, bytes, first, [](void*) {}) {}
};

}  // namespace longnet
