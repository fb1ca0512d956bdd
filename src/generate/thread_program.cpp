#include "thread_program.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::generate {
namespace {

using model::Division;
using model::Operation;

// Which part of a buffer a thread touches.
enum class Part : uint8_t { none, rows, columns, heads, scattered };

Part part_of(const Phase& phase, RowWork work) {
  const bool columns = phase.division == Division::columns;
  if (work == RowWork::whole && columns && phase.of_all_rows()) return Part::rows;
  if (columns) return phase.kind == PhaseKind::linears ? Part::scattered : Part::columns;
  if (phase.division == Division::heads && work == RowWork::repeated) return Part::heads;
  return phase.kind == PhaseKind::attend ? Part::scattered : Part::rows;
}

struct Access {
  Buffer buffer;
  Part part;
  bool writes;
};

// Threads meet where one would read or overwrite what another has touched since they last met.
class Meetings {
 public:
  explicit Meetings(size_t buffers) : touched_(buffers) {}
  bool needed(const std::vector<Access>& list) {
    const bool clash = std::any_of(list.begin(), list.end(),
                                   [&](const Access& a) { return clashes(touched_[index(a)], a); });
    if (clash) std::fill(touched_.begin(), touched_.end(), Touched{});
    for (const Access& a : list) {
      Part& before = a.writes ? touched_[index(a)].write : touched_[index(a)].read;
      before = before == Part::none || before == a.part ? a.part : Part::scattered;
    }
    return clash;
  }

 private:
  struct Touched {
    Part read = Part::none, write = Part::none;
  };
  static size_t index(const Access& a) { return index_of(a.buffer); }
  // The same rows, columns or heads are the same thread's.
  static bool apart(Part before, Part now) {
    return before != Part::none && (before != now || now == Part::scattered);
  }
  static bool clashes(const Touched& before, const Access& a) {
    return apart(before.write, a.part) || (a.writes && apart(before.read, a.part));
  }
  std::vector<Touched> touched_;
};

class Compiler {
 public:
  Compiler(const model::ModelSpec& spec, const GeneratorWeights& weights)
      : spec_(spec), weights_(weights) {
    out_.width.resize(index_of(Buffer::values) + spec.values, 0);
  }

  ThreadProgram compile() {
    for (const model::Stage& stage : spec_.stages) {
      stage_ = &stage;
      for (size_t i = 0; i < stage.operations.size();)
        i += std::visit([&](const auto& o) { return append(o, i); }, stage.operations[i]);
    }
    append_head();
    find_copied();
    for (const RowWork work : {RowWork::shared, RowWork::repeated, RowWork::whole}) {
      Meetings meetings(out_.width.size());
      for (Phase& phase : out_.phases)
        phase.meet[static_cast<size_t>(work)] = meetings.needed(accesses(phase, work));
    }
    return std::move(out_);
  }

 private:
  bool split() const { return weights_.degree() > 1; }
  size_t parameter(model::Role role) const { return spec_.index_of(*stage_, role); }
  int64_t& width(Buffer buffer) { return out_.width[index_of(buffer)]; }
  // Partial sums have one buffer, for the widest of them.
  void widen(Buffer buffer, int64_t columns) {
    width(buffer) = buffer == Buffer::partials ? std::max(width(buffer), columns) : columns;
  }
  void add_phase(Phase phase) {
    phase.layer = stage_->layer;
    out_.phases.push_back(std::move(phase));
  }

  // Appends the steps of the operations from i on that belong together; returns how many operations
  // that were.
  size_t append(const model::Spread&, size_t) { return 1; }  // matters to gradients only
  size_t append(const model::Reduce& o, size_t) {
    const Buffer out = buffer_of(o.value);
    if (split())
      add_phase({.kind = PhaseKind::sum,
                 .in = Buffer::partials,
                 .other = out,
                 .out = out,
                 .width = width(out)});
    return 1;
  }
  size_t append(const model::LookUp& o, size_t) {
    const base::Block block = weights_.block(parameter(o.weight));
    const int64_t columns = o.columns ? block.rows : block.columns;
    const Buffer out = split() ? Buffer::partials : buffer_of(o.out);
    widen(buffer_of(o.out), columns);
    widen(out, columns);
    add_phase({.kind = PhaseKind::look_up,
               .operation = o,
               .in = out,
               .other = out,
               .out = out,
               .weight = parameter(o.weight),
               .width = columns});
    return 1;
  }
  size_t append(const model::Attend& o, size_t) {
    width(buffer_of(o.out)) = width(buffer_of(o.q));
    add_phase({.kind = PhaseKind::store,
               .in = buffer_of(o.k),
               .other = buffer_of(o.v),
               .out = Buffer::cache,
               .division = Division::heads});
    add_phase({.kind = PhaseKind::attend,
               .operation = o,
               .in = buffer_of(o.q),
               .other = buffer_of(o.q),
               .out = buffer_of(o.out),
               .division = Division::heads});
    return 1;
  }
  size_t append(const model::Linear&, size_t i) { return append_linears(i); }
  template <class RowOperation>
  size_t append(const RowOperation& o, size_t) {
    const std::vector<model::Value> reads = reads_of(o);
    Phase phase{.operation = o,
                .in = buffer_of(reads.front()),
                .other = buffer_of(reads.back()),
                .out = buffer_of(result_of(o)),
                .division = division_of(o)};
    if (const auto role = weight_of(o)) phase.weight = parameter(*role);
    if constexpr (requires { o.weights; }) {
      for (size_t i = 0; i < o.weights.size(); ++i) phase.numbers[i] = parameter(o.weights[i]);
    }
    width(phase.out) = width(phase.in);
    add_phase(std::move(phase));
    return 1;
  }

  // Buffers that are written row by row only.
  void find_copied() {
    out_.copied.resize(out_.width.size(), true);
    out_.copied[index_of(Buffer::cache)] = out_.copied[index_of(Buffer::partials)] = false;
    for (const Phase& phase : out_.phases) {
      if (phase.division == Division::rows) continue;
      if (phase.count == 0) out_.copied[index_of(phase.out)] = false;
      for (size_t i = phase.first; i < phase.first + phase.count; ++i)
        out_.copied[index_of(out_.linears[i].out)] = false;
    }
  }

  // Neighbouring linears of one input are shared as one by the threads; those of a gate column by
  // column, since it needs a thread's columns of both and then no others'.
  size_t append_linears(size_t i) {
    const auto& all = stage_->operations;
    const size_t end = i + joint_linears(*stage_, i);
    const bool gated = end < all.size() && division_of(all[end]) == Division::columns &&
                       !std::holds_alternative<model::Linear>(all[end]);
    const bool partial =
        split() && end < all.size() && std::holds_alternative<model::Reduce>(all[end]);
    for (size_t j = i; j < end; ++j) {
      const auto& o = std::get<model::Linear>(all[j]);
      add_linear(parameter(o.weight), o.bias ? static_cast<int64_t>(parameter(*o.bias)) : -1,
                 buffer_of(o.in), partial ? Buffer::partials : buffer_of(o.out));
      if (partial) width(buffer_of(o.out)) = out_.linears.back().n;
      if (gated || partial || j == i)
        begin_linears(gated || partial ? PhaseKind::columns : PhaseKind::linears);
      ++out_.phases.back().count;
    }
    return end - i;
  }

  void begin_linears(PhaseKind kind) {
    const ProgramLinear& linear = out_.linears.back();
    add_phase({.kind = kind,
               .in = linear.in,
               .other = linear.in,
               .out = linear.out,
               .division = Division::columns,
               .first = out_.linears.size() - 1});
  }

  void add_linear(size_t weight, int64_t bias, Buffer in, Buffer out) {
    const base::Block block = weights_.block(weight);
    EXPECT(block.columns == width(in));
    out_.linears.push_back({weight, bias, block.columns, block.rows, in, out});
    widen(out, block.rows);
  }

  void append_head() {
    append_logits(stage_->result(), spec_.head_parameter(), Buffer::selected, Buffer::logits);
    if (!stage_->low) return;
    const auto low = spec_.head_low_position(model::AdapterUse::applied);
    append_logits(*stage_->low, stage_->parameters[*low], Buffer::selected_low, Buffer::low_logits);
    add_phase({.kind = PhaseKind::add_logits,
               .in = Buffer::logits,
               .other = Buffer::low_logits,
               .out = Buffer::logits});
  }
  void append_logits(model::Value hidden, size_t weight, Buffer selected, Buffer logits) {
    const Buffer from = buffer_of(hidden);
    add_phase({.kind = PhaseKind::select, .in = from, .other = from, .out = selected});
    width(selected) = width(from);
    add_linear(weight, -1, selected, logits);
    begin_linears(PhaseKind::linears);
    out_.phases.back().count = 1;
  }

  std::vector<Access> accesses(const Phase& phase, RowWork work) const {
    std::vector<Access> list = shared_accesses(phase, work);
    if (work == RowWork::repeated)
      std::erase_if(list, [&](const Access& a) { return out_.copied[index_of(a.buffer)]; });
    return list;
  }

  std::vector<Access> shared_accesses(const Phase& phase, RowWork work) const {
    const Part part = part_of(phase, work),
               read = work == RowWork::repeated && out_.repeats(phase) ? Part::scattered : part;
    switch (phase.kind) {
      case PhaseKind::linears:
      case PhaseKind::columns: {
        std::vector<Access> list;
        for (size_t i = phase.first; i < phase.first + phase.count; ++i) {
          list.push_back({out_.linears[i].in, part == Part::rows ? part : Part::scattered, false});
          list.push_back({out_.linears[i].out, part, true});
        }
        return list;
      }
      case PhaseKind::attend:
        return {{phase.in, part, false}, {Buffer::cache, part, false}, {phase.out, part, true}};
      case PhaseKind::select:
      case PhaseKind::sum: return {{phase.in, Part::scattered, false}, {phase.out, part, true}};
      case PhaseKind::look_up: return {{phase.out, part, true}};
      default:
        return {{phase.in, read, false}, {phase.other, read, false}, {phase.out, part, true}};
    }
  }

  const model::ModelSpec& spec_;
  const GeneratorWeights& weights_;
  const model::Stage* stage_ = nullptr;
  ThreadProgram out_;
};

}  // namespace

int ThreadProgram::meetings(int layer, RowWork work) const {
  int count = 0;
  for (const Phase& phase : phases) {
    if (phase.layer == layer)
      count += phase.meets(work) + (phase.kind == PhaseKind::sum);  // a sum has one inside
  }
  return count;
}

ThreadProgram make_thread_program(const model::ModelSpec& spec, const GeneratorWeights& weights) {
  return Compiler(spec, weights).compile();
}

}  // namespace trireme::generate
