// Tagged memory: every buffer has a tag for its purpose, and a ledger has the peak of each tag.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

namespace longnet {

class MemoryLedger;

// A 64-byte aligned block; gives its bytes back to the ledger at the end of its life.
class TaggedBuffer {
 public:
  TaggedBuffer() = default;
  TaggedBuffer(MemoryLedger& ledger, std::string tag, int64_t bytes);
  TaggedBuffer(TaggedBuffer&& other) noexcept;
  TaggedBuffer& operator=(TaggedBuffer&& other) noexcept;
  ~TaggedBuffer();

  std::byte* data() const { return data_; }
  int64_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, size_t(bytes_)}; }

 private:
  void release();
  MemoryLedger* ledger_ = nullptr;
  std::string tag_;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

// Counts the bytes of the living buffers. Not shared between threads: one ledger per rank.
class MemoryLedger {
 public:
  int64_t now_bytes() const { return now_; }
  int64_t peak_bytes() const { return peak_; }
  const std::map<std::string, int64_t>& peak_by_tag() const { return peak_by_tag_; }
  // Device buffers beyond this number of bytes are refused (DeviceOutOfMemory); 0: no limit.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  bool admits(int64_t bytes) const { return limit_ == 0 || now_ + bytes <= limit_; }
  int64_t limit() const { return limit_; }

 private:
  friend class TaggedBuffer;
  friend class DeviceBuffer;  // core/cuda/device.h
  void add(const std::string& tag, int64_t bytes);
  int64_t now_ = 0, peak_ = 0, limit_ = 0;
  std::map<std::string, int64_t> now_by_tag_, peak_by_tag_;
};

}  // namespace longnet
