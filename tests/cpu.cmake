flashlatent_test(cpu_roof_test LIBS flashlatent_runtime)
flashlatent_test(cpu_dense_test LIBS flashlatent_runtime hwy::hwy)
flashlatent_test(cpu_rows_test LIBS hwy::hwy)
flashlatent_test(reference_test)
