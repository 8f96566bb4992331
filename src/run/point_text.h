// A point in a few words.
#pragma once
#include <string>

#include "io/point.h"

namespace longnet {

std::string describe(const PointParams& params);  // "usp Pu=2 bf16 N=8K P=2 batch=2"

}  // namespace longnet
