// The shape of a model around attention, and how its training step works: what every room agrees
// on.
#pragma once
#include <cstdint>

#include "core/enum_names.h"

namespace longnet {

// Attention alone; one layer of a model around it, from given rows and to given gradients of its
// output; or a model's training step. Each holds the one before.
enum class Scope { kAttention, kLayer, kModel };
constexpr auto texts_of(Scope) { return texts("attention", "layer", "model"); }
constexpr bool has_layers(Scope s) { return s != Scope::kAttention; }

enum class Positions { kNone, kRotary, kXpos };
constexpr auto texts_of(Positions) { return texts("none", "rotary", "xpos"); }

// Activations of a layer that its backward pass finds again, in place of computing them once more:
// all of them; its input and those of attention (x, Q, K, V, O); x alone, so that attention runs
// once more, with its messages.
enum class Recompute { kNone, kKeepAttention, kFull };
constexpr auto texts_of(Recompute) { return texts("none", "keep_attention", "full"); }

// Shape of a decoder around an attention problem; its width is num_heads * head_dim.
struct ModelShape {
  int64_t layers = 6, ffn_width = 768, vocabulary = 256;
  Positions positions = Positions::kXpos;
  Recompute recompute = Recompute::kKeepAttention;
  // Every rank updates the weights whose gradients it has summed up, and sends them to the others
  // (ZeRO-1): in place of gradients, and with moments of its own part alone.
  bool shard_optimizer = false;
  bool operator==(const ModelShape&) const = default;
};

}  // namespace longnet
