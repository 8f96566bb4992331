#include "schedule/program.h"

#include "core/check.h"

namespace longnet {

Rank SequenceLayout::owner(int64_t token) const {
  check(token >= 0 && token < seq_len_, "token ", token, " outside [0, ", seq_len_, ")");
  const int64_t size = seq_len_ / world_size_, longer = seq_len_ % world_size_;
  if (token < longer * (size + 1)) return Rank(token / (size + 1));
  return Rank(longer + (token - longer * (size + 1)) / size);
}

std::string_view to_string(SlotTag tag) {
  switch (tag) {
    case SlotTag::kQuery:
      return "query";
    case SlotTag::kKeyValue:
      return "key_value";
    case SlotTag::kOutput:
      return "output";
    case SlotTag::kKvBuffer:
      return "kv_buffer";
    case SlotTag::kPacked:
      return "packed";
    case SlotTag::kGathered:
      return "gathered";
    default:
      return "partial";
  }
}

}  // namespace longnet
