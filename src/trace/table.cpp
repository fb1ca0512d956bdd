#include "trireme/trace/table.hpp"

#include <algorithm>
#include <memory>

#include "trireme/base/text.hpp"

namespace trireme::trace {

namespace {

// The union of the ranks' call trees, in the order in which regions first appear.
struct Branch {
  std::string name;
  Category category = Category::work;
  std::vector<const RegionTotal*> totals;  // of the ranks that have it
  std::vector<std::unique_ptr<Branch>> children;

  Branch& child(std::string_view wanted) {
    for (const auto& branch : children) {
      if (branch->name == wanted) return *branch;
    }
    children.push_back(std::make_unique<Branch>());
    children.back()->name = wanted;
    return *children.back();
  }
};

void insert(Branch& root, const RegionTotal& total) {
  Branch* at = &root;
  for (std::string_view rest = total.path; !rest.empty();) {
    const size_t slash = std::min(rest.find('/'), rest.size());
    at = &at->child(rest.substr(0, slash));
    rest.remove_prefix(std::min(slash + 1, rest.size()));
  }
  at->category = total.category;
  at->totals.push_back(&total);
}

template <class Get>
Spread spread(std::span<const Summary* const> ranks, Get get) {
  Spread out{get(*ranks[0]), 0, get(*ranks[0])};
  for (const Summary* rank : ranks) {
    const double value = get(*rank);
    out.min = std::min(out.min, value);
    out.max = std::max(out.max, value);
    out.avg += value / static_cast<double>(ranks.size());
  }
  return out;
}

TableRow make_row(const Branch& branch, std::string path, int depth, size_t ranks, double wall) {
  TableRow row;
  row.path = std::move(path);
  row.category = branch.category;
  row.depth = depth;
  double sum = 0, wait = 0;
  row.seconds.min =
      branch.totals.size() < ranks || branch.totals.empty() ? 0 : branch.totals[0]->seconds;
  for (const RegionTotal* total : branch.totals) {
    row.calls = std::max(row.calls, total->calls);
    row.seconds.min = std::min(row.seconds.min, total->seconds);
    row.seconds.max = std::max(row.seconds.max, total->seconds);
    row.resident = std::max(row.resident, total->resident);
    row.peak = std::max(row.peak, total->peak);
    row.device = std::max(row.device, total->device);
    row.bytes += static_cast<double>(total->bytes) / static_cast<double>(ranks);
    row.device_seconds += total->device_seconds / static_cast<double>(ranks);
    sum += total->seconds;
    wait += total->wait;
  }
  row.wait = wait / static_cast<double>(ranks);
  row.seconds.avg = sum / static_cast<double>(ranks);
  row.percent = wall > 0 ? 100 * row.seconds.avg / wall : 0;
  return row;
}

void add_rows(const Branch& branch, const std::string& prefix, int depth, RoleTable& table) {
  for (const auto& child : branch.children) {
    const std::string path = prefix + child->name;
    table.rows.push_back(
        make_row(*child, path, depth, static_cast<size_t>(table.ranks), table.seconds.avg));
    add_rows(*child, path + "/", depth + 1, table);
  }
}

RoleTable make_role_table(std::span<const Summary* const> ranks) {
  RoleTable table;
  table.role = ranks[0]->role;
  table.ranks = static_cast<int>(ranks.size());
  table.seconds = spread(ranks, [](const Summary& s) { return s.seconds; });
  table.communication = spread(ranks, [](const Summary& s) { return s.communication; });
  table.wait = spread(ranks, [](const Summary& s) { return s.wait; });
  table.io = spread(ranks, [](const Summary& s) { return s.io; });
  Branch root;
  for (const Summary* rank : ranks) {
    table.host_peak = std::max(table.host_peak, rank->host_peak);
    table.device_peak = std::max(table.device_peak, rank->device_peak);
    table.dropped += rank->dropped;
    for (const RegionTotal& total : rank->regions) insert(root, total);
  }
  add_rows(root, "", 0, table);
  for (const TableRow& row : table.rows) {
    if (row.path == "iteration") table.iterations = {row.calls, row.seconds.avg, row.wait};
  }
  return table;
}

// ---- text ----

std::string padded(const std::string& text, size_t width, bool left = false) {
  if (text.size() >= width) return text;
  const std::string space(width - text.size(), ' ');
  return left ? text + space : space + text;
}

std::string seconds_text(double value) {
  return base::fixed(value, value < 1 ? 4 : (value < 100 ? 3 : 1));
}

std::string memory_text(int64_t bytes) {
  return bytes > 0 ? base::human_bytes(static_cast<double>(bytes)) : "";
}

std::string row_text(const std::string& label, const TableRow& row) {
  return base::text(
      padded(label, 34, true), padded(std::to_string(row.calls), 9),
      padded(seconds_text(row.seconds.min), 11), padded(seconds_text(row.seconds.avg), 11),
      padded(seconds_text(row.seconds.max), 11), padded(base::fixed(row.percent, 1), 8),
      padded(row.bytes > 0 ? base::human_bytes(row.bytes) : "", 12),
      padded(memory_text(row.resident), 12),
      row.device > 0 || row.device_seconds > 0 ? padded(memory_text(row.device), 12) : "",
      row.device_seconds > 0 ? padded(seconds_text(row.device_seconds), 11) : "", "\n");
}

std::string header_text(const RoleTable& table) {
  const auto share = [&](const Spread& s) {
    return base::fixed(table.seconds.avg > 0 ? 100 * s.avg / table.seconds.avg : 0, 1) + " %";
  };
  std::string out =
      base::text(table.role.empty() ? "all roles" : table.role, ": ", table.ranks,
                 table.ranks == 1 ? " rank, " : " ranks, ", base::human_seconds(table.seconds.avg),
                 ", exposed communication ", share(table.communication), ", waiting ",
                 share(table.wait), ", files ", share(table.io), ", peak host memory ",
                 base::human_bytes(static_cast<double>(table.host_peak)));
  if (table.device_peak > 0)
    out += base::text(", device ", base::human_bytes(static_cast<double>(table.device_peak)));
  return out + "\n" +
         base::text(padded("  region", 34, true), padded("calls", 9), padded("min s", 11),
                    padded("avg s", 11), padded("max s", 11), padded("%", 8), padded("bytes", 12),
                    padded("memory", 12), table.device_peak > 0 ? padded("device", 12) : "",
                    std::ranges::any_of(table.rows,
                                        [](const TableRow& row) { return row.device_seconds > 0; })
                        ? padded("device s", 11)
                        : "",
                    "\n");
}

// Rows too small are summed into one "other" line under their parent, those too deep are left out.
// Rows are depth first, so the rows below a row directly follow it.
class RowWriter {
 public:
  RowWriter(const RoleTable& table, const TableStyle& style) : rows_(table.rows), style_(style) {}

  std::string run() {
    siblings(0, 0);
    return std::move(out_);
  }

 private:
  // Writes the siblings of one depth that begin at `at`; returns the first row that is none of
  // theirs.
  size_t siblings(size_t at, int depth) {
    TableRow other;
    while (at < rows_.size() && rows_[at].depth == depth) {
      const TableRow& row = rows_[at];
      const bool show = row.percent >= style_.fold_below_percent && depth < style_.max_depth;
      if (show) {
        out_ += row_text(indent(depth) + row.path.substr(row.path.rfind('/') + 1), row);
        at = siblings(at + 1, depth + 1);
      } else {
        add(other, row);
        at = skip_below(at);
      }
    }
    if (other.calls > 0 && other.percent >= style_.fold_below_percent && depth < style_.max_depth)
      out_ += row_text(indent(depth) + "other", other);
    return at;
  }

  size_t skip_below(size_t at) const {
    const int depth = rows_[at].depth;
    do ++at;
    while (at < rows_.size() && rows_[at].depth > depth);
    return at;
  }

  static void add(TableRow& sum, const TableRow& row) {
    sum.calls += row.calls;
    sum.seconds.min += row.seconds.min;
    sum.seconds.avg += row.seconds.avg;
    sum.seconds.max += row.seconds.max;
    sum.percent += row.percent;
    sum.bytes += row.bytes;
    sum.resident = std::max(sum.resident, row.resident);
    sum.device = std::max(sum.device, row.device);
    sum.device_seconds += row.device_seconds;
  }

  static std::string indent(int depth) {
    return std::string(2 + 2 * static_cast<size_t>(depth), ' ');
  }

  const std::vector<TableRow>& rows_;
  const TableStyle& style_;
  std::string out_;
};

}  // namespace

Table make_table(std::span<const Summary> summaries) {
  std::vector<const Summary*> sorted;
  for (const Summary& summary : summaries) sorted.push_back(&summary);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Summary* a, const Summary* b) { return a->rank < b->rank; });
  std::vector<std::vector<const Summary*>> groups;
  for (const Summary* summary : sorted) {
    const auto group = std::find_if(groups.begin(), groups.end(),
                                    [&](const auto& g) { return g[0]->role == summary->role; });
    if (group == groups.end()) {
      groups.push_back({summary});
    } else {
      group->push_back(summary);
    }
  }
  Table table;
  for (const auto& group : groups) table.push_back(make_role_table(group));
  return table;
}

std::string to_text(const Table& table, const TableStyle& style) {
  std::string out;
  for (const RoleTable& role : table)
    out += base::text(out.empty() ? "" : "\n", header_text(role), RowWriter(role, style).run());
  return out;
}

Table gather_table(int rank, std::string role, const Gather& gather) {
  std::vector<Summary> summaries;
  for (const std::string& bytes : gather(summarize(rank, std::move(role)).to_bytes()))
    summaries.push_back(Summary::from_bytes(bytes));
  return make_table(summaries);
}

}  // namespace trireme::trace
