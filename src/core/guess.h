// How far a simulated price rests on a guess (Price, simulate/cost_model.h), the least first: a sum
// of prices is as much of a guess as the worst of them. A record holds it as a number, tables and
// notes say it by its text.
#pragma once
#include <cstdint>

#include "core/enum_names.h"

namespace longnet {

enum class Guess : uint8_t { kNone, kLongerRows, kOtherSize, kEstimate, kNoFigure };
constexpr auto texts_of(Guess) {
  return texts("", "more keys than the kernel table has", "outside the kernel table",
               "by estimated kernel speeds", "without speeds of some functions");
}

}  // namespace longnet
