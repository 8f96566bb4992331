// Rows of points on stdout, as awk and gnuplot read them: comment lines begin with '#'.
#pragma once
#include <string>

#include "io/record.h"
#include "run/plan_point.h"

namespace longnet {

std::string plan_header();
std::string plan_row(int number, const PointPlan& plan);
std::string result_header();
std::string result_row(const PointRecord& record);

}  // namespace longnet
