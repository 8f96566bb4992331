// The shape of a model around attention, and how its training step works: what every room agrees on.
#pragma once
#include <cstdint>

#include "core/enum_names.h"

namespace longnet {

enum class Positions { kNone, kRotary, kXpos };
constexpr auto texts_of(Positions) { return texts("none", "rotary", "xpos"); }

// Activations of a layer that its backward pass finds again, in place of computing them once more:
// all of them; its input and those of attention (x, Q, K, V, O); x alone.
enum class Recompute { kNone, kKeepAttention };
constexpr auto texts_of(Recompute) { return texts("none", "keep_attention"); }

// Of a decoder around an attention problem, num_heads * head_dim wide.
struct ModelShape {
  int64_t layers = 6, ffn_width = 768, vocabulary = 256;
  Positions positions = Positions::kXpos;
};

}  // namespace longnet
