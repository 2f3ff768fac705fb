flashlatent_test(plan_test)
