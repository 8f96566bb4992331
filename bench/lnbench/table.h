// Rows of points on stdout, as awk and gnuplot read them: comment lines begin with '#'.
#pragma once
#include <string>

#include "io/record.h"
#include "lnbench/prepare.h"

namespace longnet {

std::string options_text(const PointParams& params);  // "zigzag Pu=2 via pairwise"; "" for defaults
std::string describe(const PointParams& params);      // "usp Pu=2 N=8K P=2 batch=2"
std::string plan_header();
std::string plan_row(int number, const PointPlan& plan);
std::string result_header();
std::string result_row(const PointRecord& record);

}  // namespace longnet
