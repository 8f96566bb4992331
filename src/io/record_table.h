// Records as rows of a table: the columns that run, check and simulate show, and all values of a
// record under their paths, for `lnbench export`.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "io/record.h"
#include "io/table.h"

namespace longnet {

std::vector<Column<PointRecord>> record_columns();
// The algorithm's options and the what-ifs of a cluster; that a simulated kernel is modelled goes
// without saying.
std::string shown_options(const PointParams& params);
std::string_view colour_of(PointStatus status);  // of its row: "31" is red

// {"timing": {"median_s": 0.1}, "per_rank": [...]} -> "timing.median_s": 0.1, "per_rank": [...]
using FlatRecord = std::vector<std::pair<std::string, JsonNode>>;
FlatRecord flat_record(const PointRecord& record);
// Columns of all paths that occur, in the order of first appearance; without lists where a cell
// holds one value.
std::vector<Column<FlatRecord>> flat_columns(const std::vector<FlatRecord>& records,
                                             bool with_lists);

}  // namespace longnet
