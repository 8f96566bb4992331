// Weights and moments of a training run on disk: a line of JSON, then the values.
//
//   {"format": 1, "step": 200, "values": 2700000, "sha256": "..."}\n
//   weights, first moments, second moments
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace longnet {

struct Checkpoint {
  int64_t step = 0;                                           // that was the last
  std::vector<float> weights, first_moments, second_moments;  // equally long
};

// Replaces checkpoint.bin: a kill leaves the old one or the new one. Throws Error when the disk
// refuses.
void write_checkpoint(const std::string& directory, const Checkpoint& checkpoint);
// Nothing where there is none. Throws UsageError for a damaged one.
std::optional<Checkpoint> read_checkpoint(const std::string& directory);

}  // namespace longnet
