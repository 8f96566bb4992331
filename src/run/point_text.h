// A point in a few words.
#pragma once
#include <string>

#include "io/point.h"

namespace longnet {

// What is not as usual of the algorithm, "zigzag Pu=2 via pairwise"; with kernel and model behind
// it, "zigzag cudnn d=128 bf16 causal".
std::string options_text(const PointParams& params);
std::string variant_text(const PointParams& params);
std::string describe(const PointParams& params);  // "usp Pu=2 bf16 N=8K P=2 batch=2"

}  // namespace longnet
