// Bytes, messages and memory of a rank in closed form: plain arithmetic over N, P, H query and G
// K/V heads, d, bytes of a number, and the branches, as the papers and the textbook costs of
// collectives have them. It stands alone: no program, no slots, none of this room's functions
// (scripts/layering_test.py holds its source to that), so that a run can hold the accounts of its
// programs, and what it counted, against it.
//
//   ring, N = 16, P = 4, G = 1, d = 64, fp32: 3 x 4 tokens x 512 bytes = 6144 sent in 3 messages
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "schedule/lower_collectives.h"

namespace longnet {

struct RankCounts {
  int64_t bytes_sent = 0, messages_sent = 0;  // messages: non-empty ones
  int64_t bytes_received = 0, messages_received = 0;
  int64_t memory_bytes = 0;  // its buffers, without the kernel's workspace
  bool operator==(const RankCounts&) const = default;
};
// "6144 B sent in 3 messages, 6144 B received in 3, 16384 B held"
std::string to_text(const RankCounts& counts);

// Returns the counts of one pass, or nothing where no closed form is known: dilation that restarts
// inside the sequence (phase_parts > 1). Every registered algorithm has one.
std::optional<RankCounts> closed_form_counts(std::string_view algorithm,
                                             const ShardedProblem& sharded,
                                             const CollectiveChoice& choice, Rank rank,
                                             Pass pass = Pass::kForward);

}  // namespace longnet
