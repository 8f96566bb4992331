// Memory for the slots of one program at a time, by tag: it grows to what the largest so far needed
// and is used again. `Buffer`: TaggedBuffer (host) or DeviceBuffer.
#pragma once
#include <map>
#include <string>

#include "execute/bound_program.h"

namespace longnet {

inline constexpr int64_t kSlotAlign = 64;

template <class Buffer>
class SlotMemory {
 public:
  // Makes room for these bytes by tag (RankProgram::memory_by_tag). Slots placed before are lost.
  void grow(const std::map<std::string, int64_t>& needed, MemoryLedger& ledger) {
    for (const auto& [tag, bytes] : needed) {
      Buffer& buffer = buffers_[tag];
      if (bytes <= buffer.size()) continue;
      buffer = Buffer();  // first, so that old and new are never held together
      buffer = Buffer(ledger, tag, bytes);
    }
  }
  // Slots of a tag in their order: rows that a backward program keeps are where its forward program
  // has gathered them.
  BoundProgram::Memory place(const RankProgram& program) const {
    std::map<SlotTag, int64_t> used;
    BoundProgram::Memory memory;
    for (const Slot& slot : program.slots) {
      int64_t& at = used[slot.tag];
      memory.push_back(buffers_.at(std::string(to_string(slot.tag)))
                           .bytes()
                           .subspan(size_t(at), size_t(slot.bytes)));
      at += ceil_div(slot.bytes, kSlotAlign) * kSlotAlign;
    }
    return memory;
  }

 private:
  std::map<std::string, Buffer> buffers_;
};

}  // namespace longnet
