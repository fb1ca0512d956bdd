#include "thread_program.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/error.hpp"

namespace trireme::generate {
namespace {

using model::Operation;
using model::OperationKind;

// Which part of a buffer a thread touches.
enum class Part : uint8_t { none, rows, columns, heads, scattered };

Part part_of(const Phase& phase, RowWork work) {
  const bool products = phase.kind == PhaseKind::linears || phase.kind == PhaseKind::columns ||
                        phase.kind == PhaseKind::gate;
  if (work == RowWork::whole && products && phase.of_all_rows()) return Part::rows;
  switch (phase.kind) {
    case PhaseKind::columns:
    case PhaseKind::gate: return Part::columns;
    case PhaseKind::linears: return Part::scattered;
    default: break;
  }
  if (phase.of_heads && work == RowWork::repeated) return Part::heads;
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
  bool needed(const std::vector<Access>& list) {
    const bool clash = std::any_of(list.begin(), list.end(),
                                   [&](const Access& a) { return clashes(touched_[index(a)], a); });
    if (clash) touched_ = {};
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
  static size_t index(const Access& a) { return static_cast<size_t>(a.buffer); }
  // The same rows, columns or heads are the same thread's.
  static bool apart(Part before, Part now) {
    return before != Part::none && (before != now || now == Part::scattered);
  }
  static bool clashes(const Touched& before, const Access& a) {
    return apart(before.write, a.part) || (a.writes && apart(before.read, a.part));
  }
  std::array<Touched, buffer_count> touched_;
};

class Compiler {
 public:
  Compiler(const model::ModelSpec& spec, const GeneratorWeights& weights)
      : spec_(spec), weights_(weights) {}

  ThreadProgram compile() {
    for (const model::Stage& stage : spec_.stages) {
      stage_ = &stage;
      for (size_t i = 0; i < stage.operations.size();) i += append(i);
    }
    append_head();
    for (const Buffer buffer :
         {buffer_of(model::Value::stream), buffer_of(model::Value::normed), Buffer::selected})
      copy(buffer);
    for (const RowWork work : {RowWork::shared, RowWork::repeated, RowWork::whole}) {
      Meetings meetings;
      for (Phase& phase : out_.phases)
        phase.meet[static_cast<size_t>(work)] = meetings.needed(accesses(phase, work));
    }
    return std::move(out_);
  }

 private:
  bool split() const { return weights_.degree() > 1; }
  size_t parameter(int position) const { return stage_->parameters[static_cast<size_t>(position)]; }
  void copy(Buffer buffer) { out_.copied[static_cast<size_t>(buffer)] = true; }
  int64_t& width(Buffer buffer) { return out_.width[static_cast<size_t>(buffer)]; }

  // Appends the steps of the operations from i on that belong together; returns how many operations
  // that were.
  size_t append(size_t i) {
    const Operation& o = stage_->operations[i];
    Phase phase{PhaseKind::add,
                {},
                buffer_of(o.in),
                buffer_of(o.other),
                buffer_of(o.out),
                0,
                stage_->layer,
                0,
                0,
                of_heads(o)};
    if (o.weight >= 0) phase.weight = parameter(o.weight);
    if (o.kind == OperationKind::linear) return append_linears(i);
    if (o.kind == OperationKind::attend) append_store(phase);
    if (o.kind == OperationKind::attend || o.kind == OperationKind::norm ||
        o.kind == OperationKind::gate)
      width(phase.out) = width(phase.in);
    switch (o.kind) {
      case OperationKind::linear: break;
      case OperationKind::spread: return 1;  // matters to gradients only
      case OperationKind::reduce:
        if (!split()) return 1;
        phase.kind = PhaseKind::sum;
        phase.in = Buffer::partials;
        copy(phase.out);
        break;
      case OperationKind::look_up:
        phase.kind = PhaseKind::look_up;
        width(phase.out) = spec_.shape.hidden;
        if (split()) phase.out = Buffer::partials;
        break;
      case OperationKind::norm: phase.kind = PhaseKind::norm; break;
      case OperationKind::rotate: phase.kind = PhaseKind::rotate; break;
      case OperationKind::attend: phase.kind = PhaseKind::attend; break;
      case OperationKind::gate: phase.kind = PhaseKind::gate; break;
      case OperationKind::add: phase.kind = PhaseKind::add; break;
      case OperationKind::add_bias: phase.kind = PhaseKind::add_weight; break;
    }
    out_.phases.push_back(phase);
    return 1;
  }

  static bool of_heads(const Operation& o) {
    return o.kind == OperationKind::attend || o.out == model::Value::q || o.out == model::Value::k;
  }

  void append_store(const Phase& attend) {
    Phase phase = attend;
    phase.kind = PhaseKind::store;
    phase.in = buffer_of(model::Value::k);
    phase.other = buffer_of(model::Value::v);
    phase.out = Buffer::cache;
    out_.phases.push_back(phase);
  }

  // Neighbouring linears of one input are shared as one by the threads; those of a gate column by
  // column, since it needs a thread's columns of both and then no others'.
  size_t append_linears(size_t i) {
    const auto& all = stage_->operations;
    size_t end = i;
    while (end < all.size() && all[end].kind == OperationKind::linear && all[end].in == all[i].in)
      ++end;
    const bool gated = end < all.size() && all[end].kind == OperationKind::gate;
    const bool partial = split() && end < all.size() && all[end].kind == OperationKind::reduce;
    for (size_t j = i; j < end; ++j) {
      const Operation& o = all[j];
      add_linear(parameter(o.weight), o.bias < 0 ? -1 : static_cast<int64_t>(parameter(o.bias)),
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
    out_.phases.push_back(
        {kind, {}, linear.in, linear.in, linear.out, 0, stage_->layer, out_.linears.size() - 1, 0});
  }

  void add_linear(size_t weight, int64_t bias, Buffer in, Buffer out) {
    const base::Block block = weights_.block(weight);
    EXPECT(block.columns == width(in));
    out_.linears.push_back({weight, bias, block.columns, block.rows, in, out});
    width(out) = block.rows;
  }

  void append_head() {
    const Buffer hidden = buffer_of(stage_->operations.back().out);
    out_.phases.push_back({PhaseKind::select, {}, hidden, hidden, Buffer::selected, 0, -1, 0, 0});
    width(Buffer::selected) = width(hidden);
    add_linear(spec_.head_parameter(), -1, Buffer::selected, Buffer::logits);
    begin_linears(PhaseKind::linears);
    out_.phases.back().count = 1;
  }

  std::vector<Access> accesses(const Phase& phase, RowWork work) const {
    std::vector<Access> list = shared_accesses(phase, work);
    if (work == RowWork::repeated)
      std::erase_if(list,
                    [&](const Access& a) { return out_.copied[static_cast<size_t>(a.buffer)]; });
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
