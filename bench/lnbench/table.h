// Rows of points on stdout, as awk and gnuplot read them: comment lines begin with '#'.
#pragma once
#include <string>

#include "io/record.h"
#include "lnbench/prepare.h"

namespace longnet {

// What is not as usual of the algorithm, "zigzag Pu=2 via pairwise"; with kernel and model behind
// it, "zigzag cudnn d=128 bf16 causal".
std::string options_text(const PointParams& params);
std::string variant_text(const PointParams& params);
std::string describe(const PointParams& params);  // "usp Pu=2 bf16 N=8K P=2 batch=2"
std::string plan_header();
std::string plan_row(int number, const PointPlan& plan);
std::string result_header();
std::string result_row(const PointRecord& record);

}  // namespace longnet
