// Points and records as rows of a table: the columns of the axes, which each table of points shows;
// those of run, check and simulate; all values of a record by their paths, for `lnbench export`.
#pragma once
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/guess.h"
#include "io/axes.h"
#include "io/record.h"
#include "io/table.h"

namespace longnet {

ColumnHead column_of(const Axis& axis);
// Adds the axes that have a column of their own (AxisUse::width) before the column `next`.
// `params`: a member or a function that gives a row's PointParams.
template <class Row>
void insert_axis_columns(std::vector<Column<Row>>& columns, std::string_view next, auto params) {
  for (const Axis& axis : axes())
    if (axis.use.width > 0)
      columns.insert(std::ranges::find(columns, next, &Column<Row>::name),
                     {column_of(axis), [&axis, params](const Row& row) {
                        return to_json(axis.member.get(std::invoke(params, row)));
                      }});
}

// A metric of simulated points, where a price in them is a guess: the number of the worst Guess.
inline const std::string kBeyondTable = "beyond_kernel_table";
Guess guess_of(const PointRecord& record);
// Text behind a row: how its time was found, what is not checked, that price, the point's reason.
std::string note_of(const PointRecord& record);
// The time over that of the same point on the unchanged cluster; null where that is not known.
inline const std::string kRatioToUnchanged = "ratio_to_unchanged";
JsonNode ratio_to_unchanged(const PointRecord& record);
// The algorithm's options, the pass, kForwardWord among others, and the what-ifs of a cluster, but
// those words; that a simulated kernel is modelled goes without saying.
inline const std::string kForwardWord(to_string(Pass::kForward));
std::string shown_options(const PointParams& params,
                          const std::set<std::string>& without = {kForwardWord});
// Values that the points have in common: columns of one value, words of all options, and both as
// text: "seq_len 8K, batch 1, d=32 bf16"; of one point the word of a forward alone.
struct Constants {
  std::set<std::string> columns, options;
  std::string text;
};
Constants constants_of(const std::vector<Point>& points);
// TableStyle::widest of columns of axes, and of the options but those words.
std::map<std::string, int> widest_cells(const std::vector<Point>& points,
                                        const std::set<std::string>& without);
// Whether there are points of a changed cluster, and of the one that they are held against.
bool compares_clusters(const std::vector<Point>& points);
// `common`: words that every row's options have, left out. `ratios`: times over those of the
// unchanged cluster.
std::vector<Column<PointRecord>> record_columns(
    const std::set<std::string>& common = {kForwardWord}, bool ratios = false);
std::string_view colour_of(PointStatus status);  // colour of its row: "31" is red

// {"timing": {"median_s": 0.1}, "per_rank": [...]} -> "timing.median_s": 0.1, "per_rank": [...]
using FlatRecord = std::vector<std::pair<std::string, JsonNode>>;
FlatRecord flat_record(const JsonNode& record);
// Columns of all paths that occur, in the order of first appearance; without lists where a cell
// holds one value.
std::vector<Column<FlatRecord>> flat_columns(const std::vector<FlatRecord>& records,
                                             bool with_lists);

}  // namespace longnet
