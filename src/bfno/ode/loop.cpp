// The integration loop around compiled graphs: a whole solve, and its gradient, in one call.
//
// `native.py` puts what belongs to one field and one method in place of the line GRAPHS: the
// constants below, and the code that torch's compiler made of
//
//   slope(y, numbers, tensors...)                        -> k
//   step(y, [k1,] numbers, tensors...)                   -> y1, [squares,] slopes...
//   step_gradient(y, [k1,] numbers, tensors..., sums..., gy1, gslopes...) -> gy, [gk1,] sums...
//   slope_gradient(y, numbers, tensors..., sums..., gk)  -> gy, sums...
//
// where `numbers` are time, step size, rtol and atol. The arithmetic of step sizes is that of
// control.py and integrate.py, in the same order and in double precision.

#include <torch/csrc/inductor/cpp_prefix.h>
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>
#include <torch/csrc/inductor/aoti_runtime/utils.h>
#include <c10/util/generic_math.h>
#include <torch/csrc/inductor/aoti_runtime/scalar_to_tensor.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

using namespace torch::aot_inductor;

namespace py {
struct gil_scoped_release_simple {  // there is no interpreter to let go of
  gil_scoped_release_simple() {}
};
}  // namespace py

[[maybe_unused]] inline int64_t align(int64_t nbytes) { return (nbytes + 64 - 1) & -64; }

#ifdef BLAS
// Products straight from BLAS: for small matrices the way there through torch takes as long.
extern "C" void sgemm_(const char*, const char*, const int*, const int*, const int*, const float*,
                       const float*, const int*, const float*, const int*, const float*, float*,
                       const int*);
extern "C" void dgemm_(const char*, const char*, const int*, const int*, const int*, const double*,
                       const double*, const int*, const double*, const int*, const double*,
                       double*, const int*);

static void gemm(char a, char b, int m, int n, int k, float alpha, const float* x, int ldx,
                 const float* y, int ldy, float beta, float* z, int ldz) {
  sgemm_(&a, &b, &m, &n, &k, &alpha, x, &ldx, y, &ldy, &beta, z, &ldz);
}
static void gemm(char a, char b, int m, int n, int k, double alpha, const double* x, int ldx,
                 const double* y, int ldy, double beta, double* z, int ldz) {
  dgemm_(&a, &b, &m, &n, &k, &alpha, x, &ldx, y, &ldy, &beta, z, &ldz);
}

struct Matrix {  // a tensor with two axes, or none of our business
  int32_t dtype = -1;
  int64_t dim = 0, *sizes = nullptr, *strides = nullptr;
  void* data = nullptr;
  explicit Matrix(AtenTensorHandle handle) {
    aoti_torch_get_dtype(handle, &dtype);
    aoti_torch_get_dim(handle, &dim);
    aoti_torch_get_sizes(handle, &sizes);
    aoti_torch_get_strides(handle, &strides);
    aoti_torch_get_data_ptr(handle, &data);
  }
  bool by_rows() const { return strides[1] == 1 && strides[0] >= std::max<int64_t>(1, sizes[1]); }
  bool by_columns() const { return strides[0] == 1 && strides[1] >= std::max<int64_t>(1, sizes[0]); }
  bool fits() const { return dim == 2 && sizes[0] < (1 << 30) && sizes[1] < (1 << 30) && (by_rows() || by_columns()); }
  char letter() const { return by_rows() ? 'N' : 'T'; }
  int lead() const { return static_cast<int>(by_rows() ? strides[0] : strides[1]); }
};

template <class T>
static void multiply(const Matrix& out, const Matrix& a, const Matrix& b, T alpha, T beta) {
  // Row-major matrices are the transposes of what BLAS sees.
  gemm(b.letter(), a.letter(), static_cast<int>(out.sizes[1]), static_cast<int>(out.sizes[0]),
       static_cast<int>(a.sizes[1]), alpha, static_cast<const T*>(b.data), b.lead(),
       static_cast<const T*>(a.data), a.lead(), beta, static_cast<T*>(out.data), out.lead());
}

static bool suits(const Matrix& out, const Matrix& a, const Matrix& b) {
  return out.dim == 2 && out.by_rows() && out.sizes[0] > 0 && out.sizes[1] > 0 && a.fits() &&
         b.fits() && a.sizes[1] > 0 && a.dtype == out.dtype && b.dtype == out.dtype &&
         (out.dtype == aoti_torch_dtype_float32() || out.dtype == aoti_torch_dtype_float64());
}

static void multiply(const Matrix& out, const Matrix& a, const Matrix& b, double alpha, double beta) {
  if (out.dtype == aoti_torch_dtype_float32())
    multiply<float>(out, a, b, static_cast<float>(alpha), static_cast<float>(beta));
  else
    multiply<double>(out, a, b, alpha, beta);
}

static AOTITorchError quick_mm_out(AtenTensorHandle out, AtenTensorHandle a, AtenTensorHandle b) {
  Matrix z(out), x(a), y(b);
  if (!suits(z, x, y)) return aoti_torch_cpu_mm_out(out, a, b);
  multiply(z, x, y, 1.0, 0.0);
  return AOTI_TORCH_SUCCESS;
}

static AOTITorchError quick_addmm_out(AtenTensorHandle out, AtenTensorHandle bias,
                                      AtenTensorHandle a, AtenTensorHandle b, double beta,
                                      double alpha) {
  Matrix z(out), x(a), y(b), c(bias);
  const bool is_row = c.dim == 1 && c.sizes[0] == (z.dim == 2 ? z.sizes[1] : -1) &&
                      (c.strides[0] == 1 || c.sizes[0] == 1);
  const bool is_whole = c.dim == 2 && z.dim == 2 && c.sizes[0] == z.sizes[0] &&
                        c.sizes[1] == z.sizes[1] && c.by_rows();
  if (!suits(z, x, y) || c.dtype != z.dtype || !(is_row || is_whole) || beta == 0)
    return aoti_torch_cpu_addmm_out(out, bias, a, b, beta, alpha);
  const size_t width = z.dtype == aoti_torch_dtype_float32() ? 4 : 8;
  if (c.data != z.data)
    for (int64_t row = 0; row < z.sizes[0]; ++row)
      std::memcpy(static_cast<char*>(z.data) + row * z.strides[0] * width,
                  static_cast<char*>(c.data) + (is_row ? 0 : row * c.strides[0] * width),
                  z.sizes[1] * width);
  multiply(z, x, y, alpha, beta);
  return AOTI_TORCH_SUCCESS;
}
#define aoti_torch_cpu_mm_out quick_mm_out
#define aoti_torch_cpu_addmm_out quick_addmm_out
#endif

// GRAPHS

namespace {

using Handle = RAIIAtenTensorHandle;
using Graph = void (*)(AtenTensorHandle*, AtenTensorHandle*);

enum Status { SUCCESS, STEP_LIMIT, STEP_UNDERFLOW, NON_FINITE, FAILED };

struct Plan {
  double start, direction, rtol, atol, first_step, min_step, max_step, safety, growth, shrink;
  double last, before, earlier;  // exponents of error ratios, all zero for the I rule
  double trial_limit;
  int64_t adaptive, order, max_steps, renew_limit, keep_pace, time_count, stop_count;
  const double *times, *stops;
};

struct Step {
  double start, end;
  Handle y, k1;
};

struct Output {  // a requested time: the step that reached it, and its share of that if inside
  int64_t step;
  double theta;
  bool inside;
};

REAL* data_of(const Handle& tensor) { return static_cast<REAL*>(tensor.data_ptr()); }

AtenTensorHandle share(const Handle& tensor) {
  AtenTensorHandle result;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(tensor.get(), &result));
  return result;
}

Handle tensor_at(void* data, int64_t dim, const int64_t* sizes, const int64_t* strides, int32_t dtype) {
  AtenTensorHandle result;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_create_tensor_from_blob(
      data, dim, sizes, strides, 0, dtype, aoti_torch_device_type_cpu(), 0, &result));
  return Handle(result);
}

Handle new_state() {
  AtenTensorHandle result;
  AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(
      STATE_DIM, STATE_SIZES, STATE_STRIDES, STATE_DTYPE(), aoti_torch_device_type_cpu(), 0, &result));
  return Handle(result);
}

Handle copy_state(const REAL* values) {
  Handle result = new_state();
  std::memcpy(data_of(result), values, NUMBERS * sizeof(REAL));
  return result;
}

bool is_finite(const REAL* values) {
  REAL sum = 0;  // of zeros, unless something is infinite or not a number
  for (int64_t i = 0; i < NUMBERS; ++i) sum += values[i] * REAL(0);
  return sum == 0;
}

// One solve, kept for its gradient.
struct Run {
  Plan plan;
  double numbers[4];
  Handle numbers_tensor;
  std::vector<Handle> tensors;
  std::vector<Step> steps;
  std::vector<Output> outputs;
  std::vector<double> ends;
  std::vector<Handle> slopes;  // of the last attempt
  int64_t evaluations = 0, accepted = 0, rejected = 0, status = SUCCESS, backward_evaluations = 0;
  double reached = 0, first_step = 0;
  std::string error;

  Run(const Plan& given, void* const* pointers) : plan(given), slopes(STAGES) {
    static const int64_t size[] = {4}, stride[] = {1};
    numbers_tensor = tensor_at(numbers, 1, size, stride, aoti_torch_dtype_float64());
    numbers[2] = plan.rtol, numbers[3] = plan.atol;
    adopt(pointers);
  }

  void adopt(void* const* pointers) {
    tensors.clear();
    for (int64_t i = 0; i < TENSOR_COUNT; ++i)
      tensors.push_back(tensor_at(pointers[i], TENSORS[i].dim, TENSORS[i].sizes, TENSORS[i].strides,
                                  TENSORS[i].dtype()));
  }

  void call(Graph graph, const std::vector<const Handle*>& before,
            const std::vector<const Handle*>& after, std::vector<Handle>& results) {
    std::vector<AtenTensorHandle> inputs, outputs(results.size());
    inputs.reserve(before.size() + 1 + tensors.size() + after.size());
    for (const Handle* one : before) inputs.push_back(share(*one));
    inputs.push_back(share(numbers_tensor));
    for (const Handle& one : tensors) inputs.push_back(share(one));
    for (const Handle* one : after) inputs.push_back(share(*one));
    graph(inputs.data(), outputs.data());
    for (size_t i = 0; i < results.size(); ++i) results[i] = Handle(outputs[i]);
  }

  Handle slope(double time, const Handle& y) {
    numbers[0] = time, numbers[1] = 0;
    std::vector<Handle> results(1);
    call(slope::inductor_entry_impl, {&y}, {}, results);
    ++evaluations;
    return std::move(results[0]);
  }

  // Try a step; return the state at its end, and the sum of its squared error in tolerances.
  Handle attempt(double start, double end, const Handle& y, const Handle& k1, double* squares) {
    numbers[0] = start, numbers[1] = end - start;
    std::vector<Handle> results(1 + MEASURED + SLOPES);
#if REUSES
    call(step::inductor_entry_impl, {&y, &k1}, {}, results);
#else
    call(step::inductor_entry_impl, {&y}, {}, results);
#endif
    evaluations += STAGES - REUSES;
    if (MEASURED) *squares = static_cast<double>(*data_of(results[1]));
    for (int i = 0; i < SLOPES; ++i)
      slopes[STAGES - SLOPES + i] = std::move(results[1 + MEASURED + i]);
    return std::move(results[0]);
  }

  double clamp(double size) const {
    return std::copysign(std::min(std::max(std::abs(size), plan.min_step), plan.max_step), size);
  }

  // By how much a step with this error had better been larger.
  double growth_after(double ratio) const {
    if (ratio == 0) return plan.growth;
    return std::min(plan.growth, plan.safety / std::pow(ratio, 1.0 / static_cast<double>(plan.order)));
  }

  double next_size(double size, double ratio, const double* past) const {
    double factor;
    if (!std::isfinite(ratio)) {
      factor = plan.shrink;
    } else if (ratio == 0) {
      factor = plan.growth;
    } else if (plan.last != 0) {
      const double least = ratio < 1 ? 1.0 : plan.shrink, most = ratio <= 1 ? plan.growth : plan.safety;
      const double power = plan.last * std::log(ratio) + plan.before * std::log(past[0]) +
                           plan.earlier * std::log(past[1]);
      factor = std::min(std::max(plan.safety * std::exp(std::min(power, 700.0)), least), most);
    } else {
      factor = std::max(growth_after(ratio), ratio < 1 ? 1.0 : plan.shrink);
    }
    return clamp(size * factor);
  }

  // Root mean square of values, or of the differences of two, in tolerances.
  double measure(const REAL* y, const REAL* one, const REAL* other) const {
    const REAL rtol = static_cast<REAL>(plan.rtol), atol = static_cast<REAL>(plan.atol);
    double sum = 0;
    for (int64_t i = 0; i < NUMBERS; ++i) {
      const REAL scale = std::max(atol + rtol * std::abs(y[i]), std::numeric_limits<REAL>::min());
      const double part = static_cast<double>((other ? one[i] - other[i] : one[i]) / scale);
      sum += part * part;
    }
    return std::sqrt(sum) / std::sqrt(static_cast<double>(std::max<int64_t>(NUMBERS, 1)));
  }

  double first_size(const Handle& y, const Handle& k1) {
    if (plan.first_step >= 0) return plan.first_step;
    const REAL *state = data_of(y), *first = data_of(k1);
    const double size_y = measure(state, state, nullptr), size_f = measure(state, first, nullptr);
    const double wanted = size_y < 1e-5 || size_f < 1e-5 ? 1e-6 : 0.01 * size_y / size_f;
    const double trial = std::min(wanted, plan.trial_limit);
    if (!(trial > 0)) return moving_clock(1e-6);
    Handle moved = new_state();
    REAL* there = data_of(moved);
    const REAL shift = static_cast<REAL>(plan.direction * trial);
    for (int64_t i = 0; i < NUMBERS; ++i) there[i] = state[i] + shift * first[i];
    const Handle second = slope(plan.start + plan.direction * trial, moved);
    const double bend = measure(state, data_of(second), first) / trial;
    double size;
    if (size_f <= 1e-15 && bend <= 1e-15)
      size = std::max(1e-6, trial * 1e-3);
    else
      size = std::pow(0.01 / std::max(size_f, bend), 1.0 / static_cast<double>(plan.order));
    const double estimate = std::min(100 * trial, size);
    return moving_clock(std::isfinite(estimate) && estimate > 0 ? estimate : trial);
  }

  double moving_clock(double size) const {
    const double start = std::abs(plan.start);
    return std::max(size, 10 * (std::nextafter(start, INFINITY) - start));
  }

  // Weight of a stage in the dense output.
  static double dense_weight(int stage, double theta) {
    double sum = 0;
    for (int k = 0; k < DEGREES; ++k) sum += DENSE[stage][k] * std::pow(theta, k + 1);
    return sum;
  }

  // Collect the requested states that an accepted step reaches; tell whether there were any.
  bool collect(double start, double end, const Handle& y, const Handle& k1, const Handle& y1, REAL* ys) {
    const size_t before = outputs.size();
    const double forward = plan.times[plan.time_count - 1] >= plan.times[0] ? 1.0 : -1.0;
    while (static_cast<int64_t>(outputs.size()) < plan.time_count) {
      const double time = plan.times[outputs.size()], ahead = (time - end) * forward;
      if (ahead > 0) break;
      REAL* row = ys + outputs.size() * NUMBERS;
      const double theta = (time - start) / (end - start);
      if (ahead < 0)
        interpolate(theta, end - start, y, k1, row);
      else
        std::memcpy(row, data_of(y1), NUMBERS * sizeof(REAL));
      outputs.push_back({accepted - 1, theta, ahead < 0});
    }
    return outputs.size() > before;
  }

  void interpolate(double theta, double size, const Handle& y, const Handle& k1, REAL* row) {
    std::fill(row, row + NUMBERS, REAL(0));
    for (int stage = 0; stage < STAGES; ++stage) {
      const REAL weight = static_cast<REAL>(dense_weight(stage, theta));
      if (weight == 0) continue;
      const REAL* slope = data_of(stage ? slopes[stage] : k1);
      for (int64_t i = 0; i < NUMBERS; ++i) row[i] += slope[i] * weight;
    }
    const REAL *state = data_of(y), factor = static_cast<REAL>(size);
    for (int64_t i = 0; i < NUMBERS; ++i) row[i] = state[i] + row[i] * factor;
  }

  // Move on to the end of an accepted step; tell whether it served a requested time.
  bool advance(double start, double end, Handle& y, Handle& k1, Handle& y1, REAL* ys, bool keep) {
    ++accepted;
    ends.push_back(end);
    const bool served = collect(start, end, y, k1, y1, ys);
    reached = end;
    if (keep) steps.push_back({start, end, std::move(y), std::move(k1)});
    y = std::move(y1);
    if (REUSES) k1 = std::move(slopes[STAGES - 1]);
    return served;
  }

  bool complete() const { return static_cast<int64_t>(outputs.size()) == plan.time_count; }

  void solve(const REAL* y0, const REAL* given, REAL* ys, bool keep) {
    reached = plan.start;
    std::memcpy(ys, y0, NUMBERS * sizeof(REAL));
    outputs.push_back({-1, 0.0, false});
    if (complete()) return;
    Handle y = copy_state(y0), k1;
    if (REUSES) k1 = given ? copy_state(given) : slope(plan.start, y);
    if (plan.adaptive)
      solve_adaptively(y, k1, ys, keep);
    else
      solve_fixed(y, k1, ys, keep);
    if (status == SUCCESS && !is_finite(data_of(y))) status = NON_FINITE;
  }

  void solve_fixed(Handle& y, Handle& k1, REAL* ys, bool keep) {
    for (int64_t i = 0; i < plan.stop_count && !complete(); ++i) {
      const double start = reached, end = plan.stops[i];
      Handle y1 = attempt(start, end, y, k1, nullptr);
      advance(start, end, y, k1, y1, ys, keep);
    }
  }

  void solve_adaptively(Handle& y, Handle& k1, REAL* ys, bool keep) {
    if (!is_finite(data_of(k1))) {
      status = NON_FINITE;
      return;
    }
    double size = plan.direction * first_size(y, k1), squares = 0, past[] = {1, 1};
    int64_t next = 0, limit = plan.max_steps;
    bool finite = true;
    while (!complete()) {
      const double start = reached;
      size = clamp(size);
      // A sliver that rounding would leave behind is taken along.
      const bool stops = next < plan.stop_count &&
                         std::abs(plan.stops[next] - start) <= std::abs(size) * (1 + 1e-9);
      const double end = stops ? plan.stops[next] : start + size;
      if (end == start) {
        status = finite ? STEP_UNDERFLOW : NON_FINITE;
        return;
      }
      if (limit == 0) {
        status = STEP_LIMIT;
        return;
      }
      --limit;
      const double taken = end - start;
      Handle y1 = attempt(start, end, y, k1, &squares);
      const double ratio = std::sqrt(squares / static_cast<double>(std::max<int64_t>(NUMBERS, 1)));
      finite = std::isfinite(ratio);
      const bool smallest = std::min(std::abs(taken), std::abs(size)) <= plan.min_step;
      const double wanted = size, tried = stops ? taken : size;
      size = next_size(tried, ratio, past);
      if (!(ratio <= 1 || (finite && smallest))) {
        ++rejected;
        continue;
      }
      if (accepted == 0 && ratio > 0) first_step = std::abs(clamp(tried * growth_after(ratio)));
      if (advance(start, end, y, k1, y1, ys, keep) && plan.renew_limit) limit = plan.max_steps;
      if (stops) {
        ++next;
        if (plan.keep_pace && std::abs(wanted) > std::abs(size)) size = wanted;
      } else {
        past[1] = past[0], past[0] = ratio == 0 ? 1.0 : ratio;
      }
    }
  }

#if DIFFERENTIABLE
  // The gradient of what was solved: sums hold the tensors' gradients so far.
  void differentiate(const REAL* gys, REAL* gy0, void* const* sum_pointers) {
    std::vector<Handle> sums;
    for (int64_t i = 0; i < SUM_COUNT; ++i) {
      const auto& like = TENSORS[SUMMED[i]];
      sums.push_back(tensor_at(sum_pointers[i], like.dim, like.sizes, SUM_STRIDES[i], like.dtype()));
    }
    Handle zero = new_state();
    std::fill(data_of(zero), data_of(zero) + NUMBERS, REAL(0));
    Handle gy(share(zero)), gk1(share(zero));
    int64_t output = static_cast<int64_t>(outputs.size()) - 1;
    for (int64_t index = static_cast<int64_t>(steps.size()) - 1; index >= 0; --index) {
      Step& one = steps[index];
      // What flows into the end of the step, into its slopes, and past it into its start.
      std::vector<Handle> gslopes(STAGES);
      gslopes[STAGES - 1] = std::move(gk1);
      Handle past;
      for (; output >= 0 && outputs[output].step == index; --output)
        spread(gys + output * NUMBERS, outputs[output], one, gy, past, gslopes);
      std::vector<const Handle*> before = {&one.y}, after;
      if (REUSES) before.push_back(&one.k1);
      for (const Handle& sum : sums) after.push_back(&sum);
      after.push_back(&gy);
      for (int stage = STAGES - SLOPES; stage < STAGES; ++stage)
        after.push_back(gslopes[stage].get() ? &gslopes[stage] : &zero);
      numbers[0] = one.start, numbers[1] = one.end - one.start;
      std::vector<Handle> results(1 + REUSES + SUM_COUNT);
      call(step_gradient::inductor_entry_impl, before, after, results);
      backward_evaluations += STAGES - REUSES;
      gy = std::move(results[0]);
      if (REUSES) gk1 = std::move(results[1]);
      if (past.get()) add(gy, data_of(past), 1);
      if (REUSES && gslopes[0].get()) add(gk1, data_of(gslopes[0]), 1);
      for (int64_t i = 0; i < SUM_COUNT; ++i) sums[i] = std::move(results[1 + REUSES + i]);
    }
#if REUSES
    if (!steps.empty()) {
      numbers[0] = plan.start, numbers[1] = 0;
      std::vector<const Handle*> before = {&steps[0].y}, after;
      for (const Handle& sum : sums) after.push_back(&sum);
      after.push_back(&gk1);
      std::vector<Handle> results(1 + SUM_COUNT);
      call(slope_gradient::inductor_entry_impl, before, after, results);
      ++backward_evaluations;
      add(gy, data_of(results[0]), 1);
      for (int64_t i = 0; i < SUM_COUNT; ++i) sums[i] = std::move(results[1 + i]);
    }
#endif
    for (int64_t i = 0; i < NUMBERS; ++i) gy0[i] = gys[i] + data_of(gy)[i];
    for (int64_t i = 0; i < SUM_COUNT; ++i)
      if (sums[i].data_ptr() != sum_pointers[i])
        std::memcpy(sum_pointers[i], sums[i].data_ptr(), SUM_BYTES[i]);
  }

  // Results may share their memory, so nothing is added in place.
  static void add(Handle& sum, const REAL* values, REAL factor) {
    Handle result = new_state();
    REAL* to = data_of(result);
    if (sum.get())
      for (int64_t i = 0; i < NUMBERS; ++i) to[i] = data_of(sum)[i] + factor * values[i];
    else
      for (int64_t i = 0; i < NUMBERS; ++i) to[i] = factor * values[i];
    sum = std::move(result);
  }

  static void spread(const REAL* values, const Output& output, const Step& step, Handle& gy,
                     Handle& past, std::vector<Handle>& gslopes) {
    if (!output.inside) {
      add(gy, values, 1);
      return;
    }
    add(past, values, 1);
    for (int stage = 0; stage < STAGES; ++stage) {
      const double weight = dense_weight(stage, output.theta) * (step.end - step.start);
      if (weight != 0) add(gslopes[stage], values, static_cast<REAL>(weight));
    }
  }
#endif
};

class NoGraph {  // autograd is off while graphs run
 public:
  NoGraph() { aoti_torch_grad_mode_set_enabled(false); }
  ~NoGraph() { aoti_torch_grad_mode_set_enabled(before_); }

 private:
  bool before_ = aoti_torch_grad_mode_is_enabled();
};

template <class Work>
void guarded(Run* run, Work work) {
  try {
    NoGraph off;
    work();
  } catch (const std::exception& error) {
    run->status = FAILED;
    run->error = error.what();
  }
}

}  // namespace

extern "C" {

Run* loop_solve(const Plan* plan, const REAL* y0, const REAL* slope, void* const* tensors, REAL* ys,
                int64_t keep) {
  Run* run = new Run(*plan, tensors);
  guarded(run, [&] { run->solve(y0, slope, ys, keep != 0); });
  run->slopes.clear();
  if (!keep) run->tensors.clear();
  return run;
}

void loop_differentiate(Run* run, void* const* tensors, const REAL* gys, REAL* gy0,
                        void* const* sums) {
#if DIFFERENTIABLE
  run->backward_evaluations = 0;
  guarded(run, [&] {
    run->adopt(tensors);
    run->differentiate(gys, gy0, sums);
  });
#endif
}

void loop_counts(const Run* run, int64_t* counts, double* reached, double* first_step) {
  counts[0] = run->status, counts[1] = run->evaluations, counts[2] = run->accepted;
  counts[3] = run->rejected, counts[4] = static_cast<int64_t>(run->outputs.size());
  counts[5] = run->backward_evaluations;
  *reached = run->reached, *first_step = run->first_step;
}

const double* loop_ends(const Run* run) { return run->ends.data(); }
const char* loop_error(const Run* run) { return run->error.c_str(); }
void loop_free(Run* run) { delete run; }
}
