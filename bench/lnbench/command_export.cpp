// `lnbench export`: the points of results as one table, every value of a record in a column.
#include <fstream>

#include "core/check.h"
#include "lnbench/terminal.h"

namespace longnet {

int run_export(const Options& options) {
  std::vector<FlatRecord> records;
  for (const std::string& folder : options.result_dirs) {
    const Result result = read_result(folder);
    for (const PointRecord& point : result.points) {
      records.push_back(flat_record(to_json(point)));
      records.back().insert(records.back().begin(), {"result", folder});
    }
  }
  std::ofstream file;
  if (!options.output.empty()) file.open(options.output);
  TableStyle style = table_style(options);
  if (!options.output.empty()) style.out = &file;
  if (style.format == TableFormat::kText) style.format = TableFormat::kCsv;
  Table<FlatRecord> table(flat_columns(records, style.format == TableFormat::kJsonLines), style);
  for (const FlatRecord& record : records) table.add(record);
  table.finish();
  if (!options.output.empty() && !file.flush()) throw UsageError("cannot write ", options.output);
  return kOk;
}

}  // namespace longnet
